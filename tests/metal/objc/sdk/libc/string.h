#pragma once
#include <stddef.h>
void *memcpy(void *target, const void *source, size_t bytes);
void *memmove(void *target, const void *source, size_t bytes);
void *memset(void *target, int value, size_t bytes);
int strcmp(const char *left, const char *right);
size_t strlen(const char *text);
char *strncpy(char *target, const char *source, size_t bytes);
