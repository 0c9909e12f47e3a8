/*
 * Lets Linux 6.1's user mode (Debian's user-mode-linux) run on a processor with AMX.
 *
 * It keeps 2,696 bytes of a process's extended registers, which is all there was before AMX, and
 * writes back what it has kept. The host's kernel takes all of them or none: ptrace(2) answers EFAULT,
 * and the guest panics at its first process. So what is written goes on top of what the process has.
 * The guest's processes have no permission to use AMX: what is beyond is in its initial state.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifndef NT_X86_XSTATE
#define NT_X86_XSTATE 0x202
#endif

long ptrace(enum __ptrace_request request, ...)
{
	static long (*real)(enum __ptrace_request, pid_t, void *, void *);
	static __thread char whole[1 << 16];
	__builtin_va_list rest;
	__builtin_va_start(rest, request);
	pid_t pid = __builtin_va_arg(rest, pid_t);
	void *address = __builtin_va_arg(rest, void *);
	void *data = __builtin_va_arg(rest, void *);
	__builtin_va_end(rest);

	if (!real)
		real = (long (*)(enum __ptrace_request, pid_t, void *, void *))dlsym(RTLD_NEXT, "ptrace");
	if (request != PTRACE_SETREGSET || (unsigned long)address != NT_X86_XSTATE)
		return real(request, pid, address, data);

	struct iovec kept = *(struct iovec *)data;
	struct iovec all = { .iov_base = whole, .iov_len = sizeof whole };
	if (real(PTRACE_GETREGSET, pid, address, &all) || all.iov_len <= kept.iov_len)
		return real(request, pid, address, data);
	memcpy(whole, kept.iov_base, kept.iov_len);
	return real(request, pid, address, &all);
}
