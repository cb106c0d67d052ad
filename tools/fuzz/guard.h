// Memory with room around it. Kernels that trust their operands read and write beside those that do not fit: here that
// harms nobody and is seen.
#pragma once

namespace dtensor::fuzz {

// From now on tensors in host memory have room before and behind them. Call it once, before the first tensor.
void guard_memory();

// What fresh memory, and the room around it, holds from now on: a result that depends on it has no one value.
void fill_memory_with(unsigned char byte);

// Whether the room around any tensor was written to since the last question.
bool wrote_out_of_bounds();

}  // namespace dtensor::fuzz
