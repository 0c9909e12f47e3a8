# frozen_string_literal: true

# Who this process is, as a Ruby worker with kicks_liveness 0.1.4 says it: the link of its mount
# namespace and the 22nd field of PID 1's stat. nil where either cannot be had.
def identity
  link = File.readlink('/proc/self/ns/mnt')
  after_command = File.binread('/proc/1/stat').rpartition(') ').last
  ticks = Integer(after_command.split(' ').fetch(22 - 3))
  ticks.zero? ? nil : "#{link}:#{ticks}"
rescue SystemCallError, ArgumentError, IndexError
  nil
end
