# frozen_string_literal: true

# Leaves marks in the text format: writer.rb DIR SLOTS [AGE_SECONDS [IDENTITY]]
require_relative 'identity'

dir, slots, age, given = ARGV
who = given || identity

put = lambda do |name, text|
  temporary = File.join(dir, ".#{name}.#{Process.pid}")
  File.binwrite(temporary, text)
  File.rename(temporary, File.join(dir, name))
end

put.call('generation', who) if who
put.call('expected', slots)
Integer(slots).times do |slot|
  line = "#{Time.now.utc.strftime('%Y-%m-%dT%H:%M:%SZ')} pid=#{Process.pid} slot=#{slot}"
  line += " generation=#{who}" if who
  put.call("worker-#{slot}", "#{line}\n")
  at = Time.now - Float(age || 0)
  File.utime(at, at, File.join(dir, "worker-#{slot}"))
end
