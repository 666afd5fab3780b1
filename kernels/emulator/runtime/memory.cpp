// See memory.h.
#include "memory.h"

#include <link.h>
#include <sys/mman.h>

#include <algorithm>

extern "C" char __start_cuemu_shared[] __attribute__((weak)), __stop_cuemu_shared[] __attribute__((weak));

namespace cuemu {
std::vector<Array> arrays;
Array static_shared, dynamic_shared_array;
static char *dynamic_bytes_begin;

void *dynamic_shared() { return dynamic_bytes_begin; }
size_t static_shared_bytes() { return (size_t)(__stop_cuemu_shared - __start_cuemu_shared); }

static bool holds(const Array &array, uintptr_t at) { return at >= array.begin && at < array.end; }

Array *array_at(uintptr_t at) {
  if (holds(dynamic_shared_array, at)) return &dynamic_shared_array;
  if (holds(static_shared, at)) return &static_shared;
  for (Array &array : arrays)
    if (holds(array, at)) return &array;
  return nullptr;
}

static uintptr_t distance(const Array &array, uintptr_t at) { return std::min(at - array.end, array.begin - at); }
const Array *nearest_array(uintptr_t at) {
  const Array *nearest = nullptr;
  for (const Array &array : arrays)
    if (!nearest || distance(array, at) < distance(*nearest, at)) nearest = &array;
  return nearest;
}

static Array shared_array(char *begin, size_t bytes, const char *name) {
  Array made{(uintptr_t)begin, (uintptr_t)begin + bytes, Mode::OUT, {0}, {}, {}};
  strncpy(made.name, name, sizeof made.name - 1);
  if (launch.check) made.written.resize(bytes), made.shadow.resize(bytes);
  return made;
}

void make_shared(size_t dynamic_bytes) {
  if (!dynamic_bytes_begin) {
    const size_t pages = (MOST_SHARED_BYTES + 8191) & ~4095;
    dynamic_bytes_begin = (char *)mmap(0, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  static_shared = shared_array(__start_cuemu_shared, static_shared_bytes(), "shared memory");
  dynamic_shared_array = shared_array(dynamic_bytes_begin, dynamic_bytes, "dynamic shared memory");
}

void poison_shared() {
  for (Array *array : {&static_shared, &dynamic_shared_array}) {
    memset((void *)array->begin, 0xFF, array->end - array->begin);
    std::fill(array->written.begin(), array->written.end(), 0);
  }
}

static int note_if_own(dl_phdr_info *object, size_t, void *out) {
  uintptr_t begin = ~0ul, end = 0;
  const uintptr_t own = (uintptr_t)&note_if_own;
  for (int i = 0; i < object->dlpi_phnum; i++) {
    const auto &part = object->dlpi_phdr[i];
    if (part.p_type != PT_LOAD) continue;
    begin = std::min<uintptr_t>(begin, object->dlpi_addr + part.p_vaddr);
    end = std::max<uintptr_t>(end, object->dlpi_addr + part.p_vaddr + part.p_memsz);
  }
  if (own < begin || own >= end) return 0;
  *(Program *)out = {begin, end};
  return 1;
}
const Program &program() {
  static const Program own = [] {
    Program found{};
    dl_iterate_phdr(note_if_own, &found);
    return found;
  }();
  return own;
}
}  // namespace cuemu
