# frozen_string_literal: true

# Judges a directory in the text format as a Ruby probe does: reader.rb DIR MAX_AGE
require_relative 'identity'

dir, max_age = ARGV
file = ->(name) { File.join(dir, name) }
say = lambda do |status, line|
  puts line
  exit status
end

if File.exist?(file['topology-unsafe'])
  say[1, 'unsupported PID topology: pod must not set shareProcessNamespace or hostPID']
end

count = begin
  Integer(File.read(file['expected']))
rescue SystemCallError, ArgumentError
  0
end
say[1, "no #{file['expected']}: worker has not started yet"] unless count.positive?

who = identity
declared = File.exist?(file['generation']) ? File.read(file['generation']) : nil
if who && declared != who
  say[1, 'heartbeat belongs to a previous container: worker has not started yet']
end

problems = (0...count).map do |slot|
  path = file["worker-#{slot}"]
  next "worker-#{slot} missing" unless File.exist?(path)
  next "worker-#{slot} belongs to a previous container" if who && File.read(path)[/ generation=(\S+)$/, 1] != who

  age = Time.now - File.mtime(path)
  "worker-#{slot} stale #{age.to_i}s > #{max_age}s" if age > Integer(max_age)
end.compact
say[1, problems.join('; ')] unless problems.empty?
say[0, "#{count} process(es) healthy"]
