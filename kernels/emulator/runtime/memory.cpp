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
  auto look = [&](const Array &array) {
    const bool exists = array.end > array.begin;
    if (exists && (!nearest || distance(array, at) < distance(*nearest, at))) nearest = &array;
  };
  for (const Array &array : arrays) look(array);
  look(static_shared);
  look(dynamic_shared_array);
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

struct Program { uintptr_t begin, end, data, data_end; };  // data: what can be written, shared memory among it

static int note_if_own(dl_phdr_info *object, size_t, void *out) {
  Program found{~0ul, 0, ~0ul, 0};
  for (int i = 0; i < object->dlpi_phnum; i++) {
    const auto &part = object->dlpi_phdr[i];
    if (part.p_type != PT_LOAD) continue;
    const uintptr_t begin = object->dlpi_addr + part.p_vaddr, end = begin + part.p_memsz;
    found.begin = std::min(found.begin, begin), found.end = std::max(found.end, end);
    if (part.p_flags & PF_W) found.data = std::min(found.data, begin), found.data_end = std::max(found.data_end, end);
  }
  const uintptr_t own = (uintptr_t)&note_if_own;
  if (own < found.begin || own >= found.end) return 0;
  *(Program *)out = found;
  return 1;
}
static const Program &program() {
  static const Program own = [] {
    Program found{};
    dl_iterate_phdr(note_if_own, &found);
    return found;
  }();
  return own;
}
uintptr_t program_begin() { return program().begin; }

bool is_constant(uintptr_t at) {
  const Program &own = program();
  if (at >= own.begin && at < own.end && (at < own.data || at >= own.data_end)) return true;
  auto within = [at](const auto &variable) { return at >= (uintptr_t)&variable && at < (uintptr_t)(&variable + 1); };
  return within(threadIdx) || within(blockIdx) || within(blockDim) || within(gridDim);
}
}  // namespace cuemu
