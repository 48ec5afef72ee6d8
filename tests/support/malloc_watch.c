/* Counts the bytes that this process has from malloc and has not given back, and the most that there were: LD_PRELOAD it. */
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static atomic_long live, peak;

static void *given(void *block) {
    if (block) {
        long size = (long)malloc_usable_size(block);
        long now = atomic_fetch_add(&live, size) + size, highest = atomic_load(&peak);
        while (now > highest && !atomic_compare_exchange_weak(&peak, &highest, now)) {}
    }
    return block;
}

static void taken(void *block) {
    if (block) atomic_fetch_sub(&live, (long)malloc_usable_size(block));
}

void *malloc(size_t size) { return given(__libc_malloc(size)); }
void *calloc(size_t count, size_t size) { return given(__libc_calloc(count, size)); }
void *memalign(size_t alignment, size_t size) { return given(__libc_memalign(alignment, size)); }
void *aligned_alloc(size_t alignment, size_t size) { return given(__libc_memalign(alignment, size)); }
void free(void *block) { taken(block); __libc_free(block); }

void *realloc(void *block, size_t size) {
    long before = block ? (long)malloc_usable_size(block) : 0;
    void *moved = __libc_realloc(block, size);
    if (moved || size == 0) atomic_fetch_sub(&live, before);
    return given(moved);
}

int posix_memalign(void **block, size_t alignment, size_t size) {
    *block = given(__libc_memalign(alignment, size));
    return *block ? 0 : ENOMEM;
}

long watch_live(void) { return atomic_load(&live); }
long watch_peak(void) { return atomic_load(&peak); }
void watch_again(void) { atomic_store(&peak, atomic_load(&live)); }
