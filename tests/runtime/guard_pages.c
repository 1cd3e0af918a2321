/* Every aligned allocation (torch's tensors) ends at a page that cannot be touched and starts behind one, and is never
 * used again once freed: an access outside a tensor ends the process. Preloaded by hostile_graphs.py. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

extern void __libc_free(void *);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

enum { PAGE = 4096, SLACK = 16 };
static const size_t REGION = (size_t)1 << 38, LARGE = (size_t)1 << 28;
static uintptr_t base, next, end;

static int ours(void *p) { return base && (uintptr_t)p >= base && (uintptr_t)p < end; }

int posix_memalign(void **out, size_t alignment, size_t size) {
  if (!base) {
    void *p = mmap(0, REGION, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return ENOMEM;
    base = (uintptr_t)p;
    end = base + REGION;
    __atomic_store_n(&next, base + PAGE, __ATOMIC_SEQ_CST);
  }
  size_t pages = (size + SLACK + PAGE - 1) / PAGE * PAGE;
  if (size > LARGE) {
    *out = __libc_memalign(alignment, size);
    return *out ? 0 : ENOMEM;
  }
  uintptr_t at = __atomic_fetch_add(&next, pages + PAGE, __ATOMIC_SEQ_CST);
  if (at + pages + PAGE > end || mprotect((void *)at, pages, PROT_READ | PROT_WRITE)) return ENOMEM;
  *out = (void *)((at + pages - size) & ~(uintptr_t)(SLACK - 1));
  return 0;
}

void free(void *p) {
  if (!ours(p)) {
    __libc_free(p);
    return;
  }
  int saved = errno; /* the rest of the allocation, up to its guard page, is unknown here: its first page is enough */
  uintptr_t page = (uintptr_t)p & ~(uintptr_t)(PAGE - 1);
  mprotect((void *)page, PAGE, PROT_NONE);
  errno = saved;
}
