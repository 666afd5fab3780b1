// Comes before a CUDA source when g++ compiles it: what the language and NVIDIA's headers give a kernel, by way of the runtime.
#pragma once
#include "types.h"

#include "runtime_calls.h"

#include "atomics.h"
#include "export.h"
#include "intrinsics.h"
#include "warp.h"
