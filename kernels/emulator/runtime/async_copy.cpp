// cp.async. The seed's parity chooses the earliest moment that is legal, or the latest; until the wait nobody may read the place.
#include "async_copy.h"

#include <algorithm>

#include "checker.h"

namespace cuemu {
static void land(const AsyncCopy &copy) {
  memcpy(copy.to, copy.from, copy.bytes_read);
  memset((char *)copy.to + copy.bytes_read, 0, copy.bytes - copy.bytes_read);
}

void async_copy(void *to, const void *from, int bytes, int bytes_read) {
  if (((uintptr_t)to | (bytes_read ? (uintptr_t)from : 0)) & (bytes - 1)) fail("cp.async: misaligned %d-byte copy", bytes);
  if (bytes_read) check_access(from, bytes_read, READ, CUEMU_CALLER);
  check_access(to, bytes, ASYNC_WRITE, CUEMU_CALLER);
  const AsyncCopy copy{to, from, bytes, bytes_read, (launch.seed & 1) != 0};
  if (copy.landed) land(copy);
  else memset(to, 0xFF, bytes);
  current->open.push_back(copy);
}

void async_commit() {
  current->groups.push_back(std::move(current->open));
  current->open.clear();
}

void async_wait(int groups_left) {
  auto &groups = current->groups;
  const int done = std::max(0, (int)groups.size() - groups_left);
  for (int i = 0; i < done; i++)
    for (const AsyncCopy &copy : groups[i]) {
      check_access(copy.to, copy.bytes, WRITE, NO_REQUEST);  // that was counted where the copy was issued
      if (!copy.landed) land(copy);
    }
  groups.erase(groups.begin(), groups.begin() + done);
}

void forget_copies(Thread &thread) {
  thread.open.clear();
  thread.groups.clear();
}
}  // namespace cuemu
