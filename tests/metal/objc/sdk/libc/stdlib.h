/* What shim/ takes from macOS's <stdlib.h>, in our own text; the other headers of this folder too. */
#pragma once
#include <stddef.h>
void *malloc(size_t bytes);
void *calloc(size_t count, size_t bytes);
void *realloc(void *memory, size_t bytes);
void *aligned_alloc(size_t alignment, size_t bytes);
void free(void *memory);
char *getenv(const char *name);
