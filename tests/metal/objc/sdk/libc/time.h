#pragma once
typedef long time_t;
struct timespec {
    time_t tv_sec;
    long tv_nsec;
};
typedef enum { CLOCK_REALTIME = 0 } clockid_t;
int clock_gettime(clockid_t clock, struct timespec *time);
