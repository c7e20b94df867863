/* Simulates an attacker who runs code inside a capture. The preloaded library starts a thread as
* soon as landlock restricts the capture (the file ATTACK_PROBE can no longer be opened for
* writing) and waits for seccomp. The thread then tries operations that a capture must not perform,
* and prints each result to stderr: `attack NAME: ERRNO` or `attack NAME: done`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif
#ifndef TIOCLINUX
#define TIOCLINUX 0x541C
#endif

typedef int starter(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

static void print_result(const char *name, long result)
{
    char text[200];
    int error = errno;
    int length = result >= 0 ? snprintf(text, sizeof text, "attack %s: done\n", name)
                             : snprintf(text, sizeof text, "attack %s: %s\n", name, strerrorname_np(error));

    if (write(2, text, length) < 0)
        _exit(1);
}

#define TRY(call) print_result(name, (call))

static const char *path_from(const char *variable)
{
    const char *value = getenv(variable);
    return value ? value : "/nonexistent";
}

/* Creates a file below a folder. */
static long create_below(const char *folder, const char *name)
{
    char path[4096];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    return open(path, O_CREAT | O_WRONLY, 0600);
}

/* Tries to create files and a folder with special bits in their modes. */
static void create_special(const char *folder)
{
    const char *name;
    char path[4096];
    struct { unsigned long long flags, mode, resolve; } how = { O_CREAT | O_WRONLY, 04755, 0 };

    snprintf(path, sizeof path, "%s/special", folder);
    name = "open_setuid", TRY(syscall(SYS_openat, AT_FDCWD, path, O_CREAT | O_WRONLY, 04755));
    name = "open_setgid", TRY(syscall(SYS_openat, AT_FDCWD, path, O_CREAT | O_WRONLY, 02755));
    name = "unnamed_setuid", TRY(syscall(SYS_openat, AT_FDCWD, folder, O_TMPFILE | O_WRONLY, 04755));
    name = "openat2_setuid", TRY(syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how));
    name = "mkdir_setgid", TRY(syscall(SYS_mkdirat, AT_FDCWD, path, 02777));
    name = "mknod_setuid", TRY(syscall(SYS_mknodat, AT_FDCWD, path, S_IFREG | 04755, 0));
#ifdef SYS_open
    name = "old_open_setuid", TRY(syscall(SYS_open, path, O_CREAT | O_WRONLY, 04755));
    name = "old_creat_setuid", TRY(syscall(SYS_creat, path, 04755));
    name = "old_mkdir_sticky", TRY(syscall(SYS_mkdir, path, 01777));
#endif
    name = "open_ordinary", TRY(syscall(SYS_openat, AT_FDCWD, path, O_CREAT | O_WRONLY, 0644));
}

static int is_filtered(void)
{
    char path[64], text[4096];
    int fd, length;

    snprintf(path, sizeof path, "/proc/self/task/%d/status", (int)syscall(SYS_gettid));
    fd = open(path, O_RDONLY);
    length = fd < 0 ? -1 : (int)read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (length <= 0)
        return 0;
    text[length] = 0;
    return strstr(text, "Seccomp_filters:\t2") != NULL;
}

/* Sends paths to all sockets of the capture. The process that runs hooks reads from one of them. */
static void send_to_hooks(const char *folder)
{
    const char *names[] = { "/etc/hostname", "--help", "a\nb\033[31m; touch pwn", "%s/planted.pcap", "%s/wqcap-q00-1.pcap",
                            "%s/../wqcap-q00-2.pcap", "%s/wqcap-q00-3\n.pcap" };
    char link[64], target[4096], path[4096];
    int fd;
    size_t i;

    for (fd = 3; fd < 1024; fd++) {
        ssize_t length;

        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        length = readlink(link, target, sizeof target - 1);
        if (length <= 0 || strncmp(target, "socket:", 7))
            continue;
        for (i = 0; i < sizeof names / sizeof *names; i++) {
            snprintf(path, sizeof path, names[i], folder);
            if (send(fd, path, strlen(path) + 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
                print_result("socket", -1);
                break;
            }
        }
    }
}

static void *attack(void *unused)
{
    const char *name, *victim = path_from("ATTACK_VICTIM");
    int other = getppid(), fd, udp, pair[2], one = 1;
    struct flock lock = { .l_type = F_RDLCK };
    struct timespec times[2] = { { 1, 0 }, { 1, 0 } };
    struct rlimit limit;
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct io_uring_params params;

    (void)unused;
    while (!is_filtered())
        usleep(1000);
    fd = open(victim, O_RDONLY);
    udp = socket(AF_INET, SOCK_DGRAM, 0);

    name = "TIOCSTI", TRY(ioctl(2, TIOCSTI, "i"));
    name = "TIOCLINUX", TRY(ioctl(2, TIOCLINUX, "\2"));
    name = "FIOSETOWN", TRY(ioctl(udp, FIOSETOWN, &other));
    name = "F_SETOWN", TRY(fcntl(udp, F_SETOWN, other));
    name = "chmod", TRY(syscall(SYS_chmod, victim, 04755));
    name = "fchmod", TRY(syscall(SYS_fchmod, fd, 04755));
    name = "fchmodat", TRY(syscall(SYS_fchmodat, AT_FDCWD, victim, 04755));
    name = "fchmodat2", TRY(syscall(SYS_fchmodat2, AT_FDCWD, victim, 04755, 0));
    name = "chown", TRY(syscall(SYS_chown, victim, 1234, 1234));
    name = "lchown", TRY(syscall(SYS_lchown, victim, 1234, 1234));
    name = "fchown", TRY(syscall(SYS_fchown, fd, 1234, 1234));
    name = "fchownat", TRY(syscall(SYS_fchownat, AT_FDCWD, victim, 1234, 1234, 0));
    name = "unix_stream", TRY(socket(AF_UNIX, SOCK_STREAM, 0));
    name = "unix_datagram", TRY(socket(AF_UNIX, SOCK_DGRAM, 0));
    name = "unix_seqpacket", TRY(socket(AF_UNIX, SOCK_SEQPACKET, 0));
    name = "socketpair", TRY(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    memset(&params, 0, sizeof params);
    name = "io_uring_setup", TRY(syscall(SYS_io_uring_setup, 4, &params));
    name = "mptcp", TRY(socket(AF_INET, SOCK_STREAM, 262));
    name = "tcp", TRY(socket(AF_INET, SOCK_STREAM, 0));
    name = "sctp", TRY(socket(AF_INET, SOCK_STREAM, IPPROTO_SCTP));
    name = "ping", TRY(socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP));
    name = "raw", TRY(socket(AF_INET, SOCK_RAW, IPPROTO_RAW));
    name = "packet", TRY(socket(AF_PACKET, SOCK_RAW, 0));
    name = "vsock", TRY(socket(AF_VSOCK, SOCK_STREAM, 0));
    name = "alg", TRY(socket(AF_ALG, SOCK_SEQPACKET, 0));
    name = "route", TRY(socket(AF_NETLINK, SOCK_RAW, 0));
    name = "netfilter", TRY(socket(AF_NETLINK, SOCK_RAW, 12));
    name = "generic", TRY(socket(AF_NETLINK, SOCK_RAW, 16));
    name = "connect", TRY(connect(udp, (void *)&to, sizeof to));
    name = "listen", TRY(listen(udp, 1));
    name = "fastopen", TRY(sendto(udp, "x", 1, MSG_FASTOPEN, (void *)&to, sizeof to));
    name = "tgkill", TRY(syscall(SYS_tgkill, other, other, 0));
    name = "kill", TRY(syscall(SYS_kill, other, 0));
    name = "prlimit", TRY(syscall(SYS_prlimit64, other, RLIMIT_NOFILE, NULL, &limit));
    name = "setpriority", TRY(syscall(SYS_setpriority, PRIO_PROCESS, other, 0));
    /* Nice 5 for the group of this process, which a test may have. Who 0 with PRIO_USER would reach every process of root. */
    name = "setpriority_group", TRY(syscall(SYS_setpriority, PRIO_PGRP, 0, 5));
    name = "setxattr", TRY(syscall(SYS_setxattr, victim, "user.x", "v", 1, 0));
    name = "utimensat", TRY(syscall(SYS_utimensat, AT_FDCWD, victim, times, 0));
    name = "record_lock", TRY(fcntl(fd, F_SETLK, &lock));
    name = "file_lock", TRY(fcntl(fd, F_OFD_SETLK, &lock));
    name = "flock", TRY(flock(fd, LOCK_EX | LOCK_NB));
    name = "transparent", TRY(setsockopt(udp, SOL_IP, IP_TRANSPARENT, &one, sizeof one));
    name = "freebind", TRY(setsockopt(udp, SOL_IP, IP_FREEBIND, &one, sizeof one));
    name = "mark", TRY(setsockopt(udp, SOL_SOCKET, SO_MARK, &one, sizeof one));
    name = "to_device", TRY(setsockopt(udp, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3));
    if (getenv("ATTACK_OUT"))
        create_special(getenv("ATTACK_OUT"));
    name = "ptrace", TRY(syscall(SYS_ptrace, 16, other, 0, 0));
    name = "execve", TRY(execve("/bin/true", (char *[]){ NULL }, (char *[]){ NULL }));
    name = "write_victim", TRY(open(victim, O_WRONLY));
    name = "beside_summary", TRY(create_below(path_from("ATTACK_SUMMARY"), "new"));
    name = "below_summary", TRY(create_below(path_from("ATTACK_SUMMARY"), "sub/new"));
    name = "beside_control", TRY(create_below(path_from("ATTACK_CONTROL"), "new"));
    name = "below_control", TRY(create_below(path_from("ATTACK_CONTROL"), "sub/new"));
    name = "hook", TRY(open(path_from("ATTACK_HOOK"), O_WRONLY | O_TRUNC));
    if (getenv("ATTACK_FOLDER"))
        send_to_hooks(getenv("ATTACK_FOLDER"));
    name = "end", TRY(0);
    return NULL;
}

/* Interposes thread creation. The first call under landlock also starts the attacker's thread. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument)
{
    static int once;
    starter *real = (starter *)dlsym(RTLD_NEXT, "pthread_create");
    int fd = open(path_from("ATTACK_PROBE"), O_WRONLY);

    if (fd >= 0) {
        close(fd);
    } else if (errno == EACCES && !__atomic_exchange_n(&once, 1, __ATOMIC_RELAXED)) {
        pthread_t own;
        real(&own, NULL, attack, NULL);
    }
    return real(thread, attributes, start, argument);
}
