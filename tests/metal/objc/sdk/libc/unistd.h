#pragma once
typedef int pid_t;
int getpagesize(void);
pid_t getpid(void);
