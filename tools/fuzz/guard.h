// Host memory with guard regions. Kernels that do not check their operands may access memory out of bounds: here this
// does no harm and is detected.
#pragma once

namespace dtensor::fuzz {

// Allocates all later tensors in host memory with guard regions. Call it once, before the first tensor.
void guard_memory();

// Initial content of later allocations and their guard regions. A result that depends on it is not deterministic.
void fill_memory_with(unsigned char byte);

// Whether the guard region of any tensor was written since the last call.
bool wrote_out_of_bounds();

}  // namespace dtensor::fuzz
