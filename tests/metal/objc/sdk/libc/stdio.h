#pragma once
#include <stdarg.h>
#include <stddef.h>
int rename(const char *from, const char *to);
__attribute__((format(printf, 3, 4))) int snprintf(char *text, size_t bytes, const char *format, ...);
int vsnprintf(char *text, size_t bytes, const char *format, va_list arguments);
