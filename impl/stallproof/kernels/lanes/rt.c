/* What lowered code calls: copy one memref to another, any rank and strides (unranked descriptors). */
#include <stdint.h>
#include <string.h>

typedef struct { int64_t rank; void *descriptor; } Unranked;

/* descriptor: allocated, aligned, offset, sizes[rank], strides[rank] */
void memrefCopy(int64_t size, Unranked *from, Unranked *to)
{
    const int64_t *f = from->descriptor, *t = to->descriptor;
    const int64_t rank = from->rank;
    const char *source = (const char *)f[1] + f[2] * size;
    char *target = (char *)t[1] + t[2] * size;
    int64_t at[8] = {0};
    if (rank > 8)
        __builtin_trap();
    for (int64_t d = 0; d < rank; d++)
        if (f[3 + d] <= 0)
            return;
    for (;;) {
        int64_t s = 0, e = 0, d;
        for (d = 0; d < rank; d++) {
            s += at[d] * f[3 + rank + d];
            e += at[d] * t[3 + rank + d];
        }
        memcpy(target + e * size, source + s * size, size);
        for (d = rank - 1; d >= 0 && ++at[d] == f[3 + d]; d--)
            at[d] = 0;
        if (d < 0)
            return;
    }
}
