/* Preloadable library: steps CLOCK_REALTIME of one process forward by STEP_S seconds and back
 * again, every STEP_EVERY_MS milliseconds. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long long start, step, every;

static long long monotonic(void)
{
    struct timespec now;

    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static long long number(const char *variable)
{
    const char *value = getenv(variable);
    return value ? atoll(value) : 0;
}

__attribute__((constructor)) static void begin(void)
{
    step = number("STEP_S");
    every = number("STEP_EVERY_MS") * 1000000;
    start = monotonic();
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = syscall(SYS_clock_gettime, clock, now);

    if (!result && every && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) && (monotonic() - start) / every % 2)
        now->tv_sec += step;
    return result;
}
