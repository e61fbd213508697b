"""What a payload may ask of the kernel, and why the rest is refused. This is the file to read and to change.

Every system call of `numbers.tsv` stands in exactly one group; a test holds that. What stands in none has a number
newer than the table, and is answered ENOSYS: a C library that finds a call missing falls back to the older one, while
EPERM from, say, a new `stat` would be shown to the user as a permission problem. Calls that are known and refused get
EPERM, so that a reader of a trace can tell a policy from an old kernel.

What this filter is for: the payload has no capability and no privileged namespace already. The filter takes away the
parts of the kernel where unprivileged bugs were found (namespaces, io_uring, bpf, keys, odd socket families), the ways
to act on another process's memory, and the ways to leave a set-id file in a directory of the host.
"""

from sandbox.seccomp.rules import Action, Case, Condition, Group, Rule, Test

# linux/sched.h: NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. NEWTIME shares its bit with the exit signal
# of clone() and exists for unshare() and clone3() only.
CLONE_NAMESPACES = 0x7E02_0000
CLONE_PARENT = 0x8000
# asm-generic/ioctls.h. TIOCSTI types into the terminal, TIOCLINUX pastes into a console, TIOCSETD loads line
# disciplines.
TIOCSTI, TIOCLINUX, TIOCSETD = 0x5412, 0x541C, 0x5423
F_SETLEASE, F_SETDELEG = 1024, 1040  # uapi/linux/fcntl.h
SET_ID_BITS = 0o6000
O_CREAT, O_TMPFILE_BIT = 0o100, 0o20000000  # the same values on both architectures
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
SOCK_TYPE_MASK = 0xF  # the rest of the word is SOCK_NONBLOCK and SOCK_CLOEXEC
SOCK_STREAM, SOCK_DGRAM = 1, 2
NETLINK_ROUTE = 0
# 0 is the type's own protocol; ICMP ones are the unprivileged echo sockets; UDP-Lite, SCTP, DCCP, L2TP stay
# out.
INET_PROTOCOLS = {"default": 0, "icmp": 1, "tcp": 6, "udp": 17, "icmpv6": 58}
# personality(2): query, Linux, 32-bit addresses' name, the 2.6 release name, and no randomisation (sanitizers, SBCL).
PERSONALITIES = (0xFFFF_FFFF, 0x0000_0000, 0x0000_0008, 0x0002_0000, 0x0002_0008, 0x0004_0000)


def _equal(argument: int, value: int, mask: int = -1) -> Condition:
    return Condition(argument=argument, test=Test.EQUAL, value=value, mask=mask)


def _any_bit(argument: int, bits: int) -> Condition:
    return Condition(argument=argument, test=Test.ANY_BIT, value=bits)


def _case(then: Action, *when: Condition) -> Case:
    return Case(when=when, then=then)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _no_set_id(mode_argument: int) -> Rule:
    return Rule(cases=(_case(Action.EPERM, _any_bit(mode_argument, SET_ID_BITS)),), otherwise=Action.ALLOW)


def _no_set_id_when_creating(flags: int, mode: int) -> Rule:
    # Without one of these flags the mode is whatever the register held, and must not be judged.
    return Rule(
        cases=tuple(
            _case(Action.EPERM, _any_bit(mode, SET_ID_BITS), _any_bit(flags, bit)) for bit in (O_CREAT, O_TMPFILE_BIT)
        ),
        otherwise=Action.ALLOW,
    )


ALLOW = Rule(otherwise=Action.ALLOW)
REFUSE = Rule(otherwise=Action.EPERM)
ABSENT = Rule(otherwise=Action.ENOSYS)

_INET_CASES = tuple(
    _case(Action.ALLOW, _equal(0, family), _equal(1, kind, SOCK_TYPE_MASK), _equal(2, protocol))
    for family in (AF_INET, AF_INET6)
    for kind in (SOCK_STREAM, SOCK_DGRAM)
    for protocol in INET_PROTOCOLS.values()
)

GROUPS: tuple[Group, ...] = (
    # ---- judged by their arguments ----
    Group(
        name="socket",
        why="unix and internet stream or datagram sockets, and route reads (getifaddrs). VSOCK reaches the hypervisor, "
        "PACKET the wire, ALG and the rest much kernel code. SOCK_PACKET and RAW over INET stay out too; another "
        "protocol (MPTCP, SCTP) is answered so that runtimes fall back to TCP.",
        rule=Rule(
            cases=(
                _case(Action.ALLOW, _equal(0, AF_UNIX)),
                *_INET_CASES,
                _case(Action.ALLOW, _equal(0, AF_NETLINK), _equal(2, NETLINK_ROUTE)),
                _case(Action.EPROTONOSUPPORT, _equal(0, AF_INET), _equal(1, SOCK_STREAM, SOCK_TYPE_MASK)),
                _case(Action.EPROTONOSUPPORT, _equal(0, AF_INET6), _equal(1, SOCK_STREAM, SOCK_TYPE_MASK)),
            ),
            otherwise=Action.EPERM,
        ),
        calls=("socket",),
    ),
    Group(
        name="socketpair",
        why="only unix pairs have a use",
        rule=Rule(cases=(_case(Action.ALLOW, _equal(0, AF_UNIX)),), otherwise=Action.EPERM),
        calls=("socketpair",),
    ),
    Group(
        name="clone",
        why="processes and threads, never a new namespace: a user namespace gives back every capability inside it. "
        "Never a sibling: a session's command is the runner's child, and so would that be; nobody would wait for it, "
        "and its pid namespace would never end. The kernel looks at the low word of the flags only.",
        rule=Rule(cases=(_case(Action.EPERM, _any_bit(0, CLONE_NAMESPACES | CLONE_PARENT)),), otherwise=Action.ALLOW),
        calls=("clone",),
    ),
    Group(
        name="clone3",
        why="its flags are in memory, where a filter cannot look; C libraries fall back to clone",
        rule=ABSENT,
        calls=("clone3",),
        kept_in_log_mode=True,
    ),
    Group(
        name="openat2",
        why="its mode is in memory, where a filter cannot look; callers fall back to openat",
        rule=ABSENT,
        calls=("openat2",),
        kept_in_log_mode=True,
    ),
    Group(
        name="ioctl",
        why="no typing into a terminal that a person may be attached to, no line disciplines; compared by the low "
        "word, as the kernel does",
        rule=Rule(
            cases=tuple(_case(Action.EPERM, _equal(1, request)) for request in (TIOCSTI, TIOCLINUX, TIOCSETD)),
            otherwise=Action.ALLOW,
        ),
        calls=("ioctl",),
    ),
    Group(
        name="fcntl",
        why="no lease or delegation: the owner of a file takes one over what it may only read, and whoever opens that "
        "file outside then waits up to 45 s (fs.lease-break-time); only file servers use them",
        rule=Rule(
            cases=tuple(_case(Action.EPERM, _equal(1, command)) for command in (F_SETLEASE, F_SETDELEG)),
            otherwise=Action.ALLOW,
        ),
        calls=("fcntl",),
    ),
    Group(
        name="personality",
        why="a few harmless values; READ_IMPLIES_EXEC, MMAP_PAGE_ZERO and their like weaken every exec after it",
        rule=Rule(
            cases=tuple(_case(Action.ALLOW, _equal(0, value)) for value in PERSONALITIES), otherwise=Action.EPERM
        ),
        calls=("personality",),
    ),
    Group(
        name="mode in argument 1",
        why="the workspace is a directory of the host: a set-id file left in it would work outside",
        rule=_no_set_id(1),
        calls=_words("chmod fchmod creat mkdir mknod"),
    ),
    Group(
        name="mode in argument 2",
        why="as above, the forms that take a directory",
        rule=_no_set_id(2),
        calls=_words("fchmodat fchmodat2 mkdirat mknodat"),
    ),
    Group(
        name="open",
        why="as above, when a file is made",
        rule=_no_set_id_when_creating(1, 2),
        calls=("open",),
    ),
    Group(
        name="openat",
        why="as above, when a file is made",
        rule=_no_set_id_when_creating(2, 3),
        calls=("openat",),
    ),
    # ---- refused ----
    Group(
        name="mounts and roots",
        why="the view of the file system is the boundary",
        rule=REFUSE,
        calls=_words(
            "mount umount2 pivot_root chroot move_mount open_tree open_tree_attr fsopen fsconfig fsmount fspick "
            "mount_setattr"
        ),
    ),
    Group(name="namespaces", why="neither a new one nor another's", rule=REFUSE, calls=_words("unshare setns")),
    Group(
        name="other processes",
        why="reading or writing another process's memory and descriptors, and comparing kernel pointers",
        rule=REFUSE,
        calls=_words("ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp"),
    ),
    Group(
        name="kernel programs and tracing",
        why="verifier and tracing bugs; page fault handling from outside the kernel makes races easy to win",
        rule=REFUSE,
        calls=_words("bpf perf_event_open userfaultfd"),
    ),
    Group(
        name="io_uring",
        why="it performs opens, sockets and connects that this filter would not see",
        rule=REFUSE,
        calls=_words("io_uring_setup io_uring_enter io_uring_register"),
    ),
    Group(
        name="keys",
        why="keyrings are not bound to the sandbox's namespaces",
        rule=REFUSE,
        calls=_words("add_key request_key keyctl"),
    ),
    Group(
        name="files by handle",
        why="a handle reaches files outside every mount that is visible",
        rule=REFUSE,
        calls=_words("open_by_handle_at name_to_handle_at"),
    ),
    Group(
        name="watching the file system",
        why="marks whole mounts and file systems; inotify serves build tools",
        rule=REFUSE,
        calls=_words("fanotify_init fanotify_mark"),
    ),
    Group(
        name="hidden memory",
        why="pages that nobody can account for or inspect",
        rule=REFUSE,
        calls=("memfd_secret",),
    ),
    Group(
        name="the machine",
        why="modules, restarts, swap, clocks, names, quotas, accounting, ports, logs: the host's, never a payload's",
        rule=REFUSE,
        calls=_words(
            "kexec_load kexec_file_load init_module finit_module delete_module reboot swapon swapoff syslog "
            "sethostname setdomainname quotactl quotactl_fd acct settimeofday clock_settime clock_adjtime adjtimex "
            "vhangup iopl ioperm modify_ldt uselib lsm_set_self_attr migrate_pages move_pages"
        ),
    ),
    Group(
        name="obsolete or useless here",
        why="gone from today's kernels, or new and without a user: answered as if they did not exist",
        rule=ABSENT,
        calls=_words(
            "create_module get_kernel_syms query_module nfsservctl getpmsg putpmsg afs_syscall tuxcall security "
            "vserver epoll_ctl_old epoll_wait_old _sysctl sysfs ustat lookup_dcookie set_thread_area get_thread_area "
            "statmount listmount lsm_get_self_attr lsm_list_modules process_madvise process_mrelease file_setattr"
        ),
    ),
    # ---- allowed ----
    Group(
        name="files",
        why="ordinary work on files; the mounts decide which",
        rule=ALLOW,
        calls=_words(
            "read write close stat fstat lstat lseek pread64 pwrite64 readv writev access pipe dup dup2 sendfile "
            "flock fsync fdatasync truncate ftruncate getdents getcwd chdir fchdir rename rmdir link unlink symlink "
            "readlink chown fchown lchown umask utime statfs fstatfs sync readahead setxattr lsetxattr fsetxattr "
            "getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr "
            "getdents64 fadvise64 utimes fchownat futimesat newfstatat unlinkat renameat linkat symlinkat readlinkat "
            "faccessat splice tee sync_file_range vmsplice utimensat fallocate dup3 pipe2 preadv pwritev syncfs "
            "renameat2 memfd_create copy_file_range preadv2 pwritev2 statx close_range faccessat2 cachestat "
            "setxattrat getxattrat listxattrat removexattrat file_getattr"
        ),
    ),
    Group(
        name="waiting",
        why="events, timers, descriptors to wait on",
        rule=ALLOW,
        calls=_words(
            "poll select pselect6 ppoll epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 "
            "eventfd eventfd2 signalfd signalfd4 timerfd_create timerfd_settime timerfd_gettime inotify_init "
            "inotify_init1 inotify_add_watch inotify_rm_watch io_setup io_destroy io_getevents io_pgetevents io_submit "
            "io_cancel pause nanosleep clock_nanosleep getitimer setitimer alarm timer_create timer_settime "
            "timer_gettime timer_getoverrun timer_delete"
        ),
    ),
    Group(
        name="memory",
        why="of the process itself",
        rule=ALLOW,
        calls=_words(
            "mmap mprotect munmap brk mremap msync mincore madvise mlock munlock mlockall munlockall mlock2 "
            "remap_file_pages mbind set_mempolicy get_mempolicy set_mempolicy_home_node pkey_mprotect pkey_alloc "
            "pkey_free membarrier mseal map_shadow_stack"
        ),
    ),
    Group(
        name="processes, threads and signals",
        why="job control and runtimes; the pid namespace bounds whom they reach",
        rule=ALLOW,
        calls=_words(
            "fork vfork execve execveat exit exit_group wait4 waitid kill tkill tgkill rt_sigaction rt_sigprocmask "
            "rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_tgsigqueueinfo rt_sigsuspend sigaltstack "
            "restart_syscall futex futex_waitv futex_wake futex_wait futex_requeue set_robust_list get_robust_list "
            "set_tid_address rseq uretprobe uprobe sched_yield sched_setparam sched_getparam sched_setscheduler "
            "sched_getscheduler sched_get_priority_max sched_get_priority_min sched_rr_get_interval sched_setaffinity "
            "sched_getaffinity sched_setattr sched_getattr getpriority setpriority ioprio_set ioprio_get getcpu "
            "getpid getppid gettid setpgid getpgid getpgrp setsid getsid pidfd_open pidfd_send_signal arch_prctl prctl"
        ),
    ),
    Group(
        name="identity and limits",
        why="nothing to gain: no capability, no second identity is mapped, limits only go down",
        rule=ALLOW,
        calls=_words(
            "getuid geteuid getgid getegid setuid setgid setreuid setregid setresuid getresuid setresgid getresgid "
            "setfsuid setfsgid getgroups setgroups capget capset getrlimit setrlimit prlimit64 getrusage seccomp "
            "landlock_create_ruleset landlock_add_rule landlock_restrict_self"
        ),
    ),
    Group(
        name="facts",
        why="time, randomness, names",
        rule=ALLOW,
        calls=_words("uname gettimeofday time clock_gettime clock_getres sysinfo times getrandom"),
    ),
    Group(
        name="connected sockets",
        why="what `socket` let through may be used",
        rule=ALLOW,
        calls=_words(
            "connect accept accept4 sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg shutdown bind listen getsockname "
            "getpeername setsockopt getsockopt"
        ),
    ),
    Group(
        name="messages between processes",
        why="System V and POSIX queues, semaphores, shared memory: the ipc namespace is the sandbox's own",
        rule=ALLOW,
        calls=_words(
            "shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv msgctl mq_open mq_unlink "
            "mq_timedsend mq_timedreceive mq_notify mq_getsetattr"
        ),
    ),
)

UNKNOWN = Action.ENOSYS
FOREIGN_ARCHITECTURE = Action.KILL
