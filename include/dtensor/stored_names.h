// What a folder of another program calls the tensors of a model, and how it cuts, joins and turns them: a table, read
// forwards to load such a folder and backwards to write one.
//
//   StoredNames gpt2 = {
//     {.tensor = "layers.*.attn.q_proj.weight", .stored = "h.*.attn.c_attn.weight", .transposed = true,
//      .of_stored = {.dim = 1, .begin = 0, .count = 768}},                     // a part of a fused tensor
//     {.tensor = "layers.*.moe.experts.w1", .stored = "layers.*.experts.#.w1.weight"},  // a stack of many
//     {.tensor = "**", .stored = "model.**"}};                                 // a rename
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/export.h"

namespace dtensor {

// Some indices of one dimension; by default all.
struct IndexRange {
  // The dimension, and the first index.
  std::int64_t dim = 0, begin = 0;
  std::int64_t count = -1;  // -1: to the end
};

// A row of the table.
struct StoredName {
  // A pattern over the model's names: "*" is any part of a name between dots, "**" any part. Empty: what is stored
  // under names that match `stored` is passed over (masks, what a later program left there).
  std::string tensor;
  // The name there. Its n-th "*" or "**" is what the pattern's n-th one was; "#" counts the indices of the model's
  // tensor along its first dimension, each of which is a tensor of its own there.
  std::string stored;
  bool transposed = false;    // the last two dimensions are exchanged there
  IndexRange of_stored = {};  // it is these indices of what is stored, in dimensions as stored
  IndexRange of_tensor = {};  // it fills these indices of the model's tensor (a fusion here)
};
// Of rows with the same `tensor` all count, together they fill it. Of different patterns that match a name the first
// one counts.
using StoredNames = std::vector<StoredName>;

// The names and tensors that such a folder has: splits are joined, stacks taken apart, turned ones turned back. Renamed
// tensors are the given ones; the others are new, on the mesh of what they are made of. Tensors that no row names are
// an error, and so are parts that do not make a whole. Collective over the meshes of tensors that are joined or
// unstacked.
DTENSOR_API std::vector<std::pair<std::string, at::Tensor>> as_stored(
    const std::vector<std::pair<std::string, at::Tensor>>& tensors, const StoredNames& names);

}  // namespace dtensor
