/* code_tables.h: what the 4-bit codes of the non-linear weight types stand for. */
#ifndef MTLQ_CODE_TABLES_H
#define MTLQ_CODE_TABLES_H

#include <stdint.h>

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* MXFP4: twice the E2M1 value; bit 3 is the sign. */
static const int8_t mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

#endif
