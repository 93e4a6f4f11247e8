#pragma once
#include <stdint.h>
#define PRIx64 "llx"
