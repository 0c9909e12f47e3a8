# frozen_string_literal: true

# A worker's marks as kicks_liveness 0.1.4 leaves them, in its text format: every tick the declared
# count, the container's generation and slot 0's mark; no mark any more after SIGUSR1.

dir = ENV.fetch('KICKS_LIVENESS_DIR')
tick = Float(ENV.fetch('TICK'))

link = File.readlink('/proc/self/ns/mnt')
start = File.binread('/proc/1/stat').rpartition(') ').last.split.fetch(22 - 3)
generation = "#{link}:#{start}"

ill = false
trap('USR1') { ill = true }
trap('TERM') { exit }

publish = lambda do |name, text|
  temporary = File.join(dir, ".#{name}.#{Process.pid}")
  File.binwrite(temporary, text)
  File.rename(temporary, File.join(dir, name))
end

loop do
  publish.call('generation', generation)
  publish.call('expected', '1')
  now = Time.now.utc.strftime('%Y-%m-%dT%H:%M:%SZ')
  publish.call('worker-0', "#{now} pid=#{Process.pid} slot=0 generation=#{generation}\n") unless ill
  sleep(tick)
end
