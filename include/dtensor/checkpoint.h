// Checkpoints: a folder of standard safetensors files that stores each tensor unsharded. All ranks write it in parallel
// from any placements, and all ranks read it into any other placements. See docs/design/checkpoint.md.
// In a dry run, which has no values, nothing is saved or loaded.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dtensor/comm.h"
#include "dtensor/export.h"
#include "dtensor/grad_scaler.h"
#include "dtensor/mesh.h"
#include "dtensor/optim/optimizer.h"
#include "dtensor/placement.h"
#include "dtensor/tensor.h"

namespace dtensor {

// Maps the tensor names of a model to those of another program's state dict, including slices, stacks and transposes.
// Loading applies the table from stored to model names, saving applies it in reverse.
//
//   StateDictKeyMapping gpt2 = {
//     {.tensor = "layers.*.attn.q_proj.weight", .stored = "h.*.attn.c_attn.weight", .transposed = true,
//      .stored_slice = {.dim = 1, .begin = 0, .count = 768}},                     // a slice of a fused tensor
//     {.tensor = "layers.*.moe.experts.w1", .stored = "layers.*.experts.#.w1.weight"},  // a stack of tensors
//     {.tensor = "**", .stored = "model.**"}};                                 // a renamed tensor

// One row of a StateDictKeyMapping.
struct StateDictKeyRule {
  // A range of indices of one dimension; by default the full dimension.
  struct Range {
    // Dimension and first index.
    std::int64_t dim = 0, begin = 0;
    std::int64_t count = -1;  // number of indices; -1: to the end of the dimension
  };
  // Pattern over the model's tensor names. "*" matches any text between two dots, "**" matches any text. If empty,
  // stored tensors whose names match `stored` are ignored (for instance attention masks).
  std::string tensor;
  // Name of the stored tensor. Its n-th "*" or "**" stands for the text that the n-th wildcard of `tensor` matched. "#"
  // is an index into the first dimension of the model's tensor: each index is stored as a separate tensor.
  std::string stored;
  bool transposed = false;  // the stored tensor has its last two dimensions transposed
  Range stored_slice = {};  // the slice of the stored tensor that is used, in stored dimensions
  Range tensor_slice = {};  // the slice of the model's tensor that is filled (for a fused model tensor)
};
// Rows with equal `tensor` apply together and must fill the tensor. If several different patterns match a name, the
// first one applies.
using StateDictKeyMapping = std::vector<StateDictKeyRule>;

// Converts a model's state dict to the names and tensors of the other program: joins slices, unstacks and transposes.
// Tensors that are only renamed are returned as given; others are new and on the mesh of their inputs. Throws if no row
// matches a tensor, or if the slices do not cover a stored tensor. Collective over the meshes of tensors that are
// joined or unstacked.
DTENSOR_API std::vector<std::pair<std::string, at::Tensor>> map_state_dict_keys(
    const std::vector<std::pair<std::string, at::Tensor>>& tensors, const StateDictKeyMapping& names);

// Values that are no tensors, by name: a step count, a learning rate, a note.
using CheckpointValues = std::map<std::string, std::variant<bool, std::int64_t, double, std::string>>;

// Options of save_state().
struct SaveOptions {
  bool sync = true;  // fsync files before returning
  // Size limit of a file in bytes; a larger tensor gets its own file.
  std::int64_t max_file_bytes = 5'000'000'000;
  // Keeps files of the folder that are not part of a checkpoint (config.json, a tokenizer). If false, such files are an
  // error.
  bool keep_foreign = false;
};

// Options of load_state().
struct LoadOptions {
  bool verify = true;             // verify checksums, if the checkpoint has them
  bool allow_missing = false;     // targets that the checkpoint lacks keep their values instead of being an error
  bool allow_unexpected = false;  // stored tensors without a target are ignored instead of being an error
  bool allow_cast = false;        // converts dtypes that differ
  // Names and slices of a folder that another program wrote; each rank reads only the ranges that it needs. A tied
  // tensor is found under any of its names. Rows that only rename also apply to values and optimizer states. If empty,
  // names are those of save_state().
  StateDictKeyMapping names = {};
};

// Saves a checkpoint to `directory`, creating parent folders. An existing checkpoint is replaced once all files are
// written. Collective over `ranks`, which must contain the ranks of all meshes involved.
// `tensors` lists DTensors on any meshes (also meshes without this rank) and regular tensors. Regular tensors and
// values must be equal on all ranks that list them; per-rank data needs a name per rank. Partial tensors are reduced.
// An error on any rank is raised on all ranks and leaves the previous checkpoint unchanged.
DTENSOR_API void save_state(const std::string& directory, const Communicator& ranks, const StateTensors& tensors,
                            const CheckpointValues& values = {}, const SaveOptions& options = {});

// Loads into `targets` in place and returns the values. Collective over `ranks`; number of ranks and placements may
// differ from those at save time. `path` is a folder that save_state() wrote, a folder in the HuggingFace layout, or
// one .safetensors file.
// All mismatches are reported in one c10::ValueError, equal on all ranks, before any target is written. If reading or
// verifying fails, the contents of the targets are undefined.
DTENSOR_API CheckpointValues load_state(const std::string& path, const Communicator& ranks, const StateTensors& targets,
                                        const LoadOptions& options = {});

// Throws if save_state() could not write to the folder (foreign files, no permission, full disk), so that a program can
// fail early. Creates parent folders, and a small temporary file in them. Not collective.
DTENSOR_API void check_can_save(const std::string& directory, const SaveOptions& options = {});

// Handle of a save in progress. A thread writes copies of this rank's shards, so the tensors may be modified.
class DTENSOR_API PendingSave {
 public:
  struct Impl;
  explicit PendingSave(std::unique_ptr<Impl> impl);
  PendingSave(PendingSave&&) noexcept;
  PendingSave& operator=(PendingSave&&) noexcept;
  // If wait() was not called: joins the thread and leaves `directory` unchanged.
  ~PendingSave();
  bool done() const;  // whether this rank has written its part
  // Completes the save as save_state() does. Collective over the ranks that started it.
  void wait();

 private:
  std::unique_ptr<Impl> impl_;
};
// Like save_state(), but returns after copying this rank's shards; PendingSave::wait() completes the save. If no thread
// can be started, the shards are written before the function returns.
DTENSOR_API PendingSave save_state_async(const std::string& directory, const Communicator& ranks,
                                         const StateTensors& tensors, const CheckpointValues& values = {},
                                         const SaveOptions& options = {});

// Metadata of one stored tensor.
struct CheckpointEntry {
  // Name of the tensor.
  std::string name = {};
  at::ScalarType dtype = at::ScalarType::Undefined;  // Undefined: a dtype without ATen equivalent (F6_E2M3, F6_E3M2)
  // Global sizes.
  std::vector<std::int64_t> sizes = {};
  std::string file = {};               // path of the file
  std::int64_t offset = 0, bytes = 0;  // byte range in the file
  // Checksum of the bytes; empty for files of other programs.
  std::optional<std::uint64_t> checksum = {};
  std::string format_dtype = {};  // dtype name in the file, for instance "F32"
};
// Metadata of a checkpoint.
struct CheckpointIndex {
  // Entries of all tensors, and the values.
  std::vector<CheckpointEntry> entries = {};
  CheckpointValues values = {};
};
// Reads the metadata of a path that load_state() accepts, without reading tensors. Not collective.
DTENSOR_API CheckpointIndex read_checkpoint_index(const std::string& path);

// Reads a checkpoint in pieces of 4 MiB and compares all checksums. Returns one sentence for each error; empty if the
// checkpoint is intact. Accepts the paths of load_state(). Tensors without a checksum (files of other programs) are
// read but not verified. Not collective. tools/verify_checkpoint prints the result.
DTENSOR_API std::vector<std::string> verify_checkpoint(const std::string& path);

// Training state as one object: parts are registered once by reference, then saved and loaded together.
//   Checkpoint state;
//   state.add("model", model).add("optimizer", optimizer).add("step", step).add_random("random", mesh);
//   state.load(directory, world);  // or save, save_async
// The registered objects must outlive it. All ranks register the same parts in the same order.
class DTENSOR_API Checkpoint {
 public:
  // Registers a part. save() reads the variable and load() writes to it. Sizes and dtype must match those stored, as in
  // load_state().
  Checkpoint& add(const std::string& name, at::Tensor& tensor);
  Checkpoint& add(const std::string& prefix, const NamedTensors& tensors);  // names `prefix.name`; "": `name`
  Checkpoint& add(const std::string& prefix, const StateTensors& handles);  // loaded in place
  // Tensors `prefix.<parameter>.exp_avg` and values `prefix.<parameter>.step`, named as in state_dict().
  Checkpoint& add(const std::string& prefix, Optimizer& optimizer);
  Checkpoint& add(const std::string& name, std::int64_t& value);
  Checkpoint& add(const std::string& name, double& value);
  Checkpoint& add(const std::string& name, bool& value);
  Checkpoint& add(const std::string& name, std::string& value);
  // Values `prefix.<name>`. Names that `values` already contains must be stored, with any type. Other stored values
  // with this prefix are added unless another part claims them. If `takes` is set, it selects them by name (without
  // prefix).
  Checkpoint& add(const std::string& prefix, CheckpointValues& values,
                  const std::function<bool(const std::string&)>& takes = {});
  Checkpoint& add(const std::string& prefix, GradScaler& scaler);  // values `prefix.scale`, `prefix.good_steps`
  // Random number state of the mesh's world, as `prefix.seed` and `prefix.counter`.
  Checkpoint& add_random(const std::string& prefix, const DeviceMesh& mesh);

  // A model with named_parameters(), and named_buffers() if it has buffers.
  template <class Model>
  requires requires(Model& m) { NamedTensors(m.named_parameters()); }
  Checkpoint& add(const std::string& prefix, Model& model) {
    add(prefix, NamedTensors(model.named_parameters()));
    if constexpr (requires { NamedTensors(model.named_buffers()); }) add(prefix, NamedTensors(model.named_buffers()));
    return *this;
  }
  // A torch::nn::Module, whose lists hold tensor handles.
  template <class Model>
  requires requires(Model& m) { m.named_parameters().begin()->value(); }
  Checkpoint& add(const std::string& prefix, Model& model) {
    StateTensors handles;
    for (const auto& item : model.named_parameters()) handles.emplace_back(item.key(), item.value());
    for (const auto& item : model.named_buffers()) handles.emplace_back(item.key(), item.value());
    return add(prefix, handles);
  }

  // Like save_state() and save_state_async(), for all parts.
  void save(const std::string& directory, const Communicator& ranks, const SaveOptions& options = {}) const;
  PendingSave save_async(const std::string& directory, const Communicator& ranks,
                         const SaveOptions& options = {}) const;
  // Loads all parts. Values, random state and optimizers change only after all tensors are read and verified. If an
  // optimizer then throws, values and random state do not change.
  void load(const std::string& path, const Communicator& ranks, const LoadOptions& options = {});

  struct Part;

 private:
  Checkpoint& add(std::unique_ptr<Part> part);
  std::pair<StateTensors, CheckpointValues> collect() const;
  std::vector<std::shared_ptr<Part>> parts_;
};

// Distributes a full state dict of rank `source` to the targets of all ranks; each rank keeps its local part. Sends
// pieces of at most 4 MiB, so a rank never holds more than its shards and a buffer. `full` is ignored on other ranks.
// Mismatches of names, sizes or dtypes are one error on all ranks. Collective over `ranks`.
DTENSOR_API void broadcast_state(const StateTensors& full, const Communicator& ranks, const StateTensors& targets,
                                 int source = 0);
// Like the above, but returns new DTensors on `mesh` with the placements that `place` returns, in the order of `full`.
DTENSOR_API StateTensors
broadcast_state(const StateTensors& full, const DeviceMesh& mesh,
                const std::function<Placements(const std::string& name, at::IntArrayRef sizes)>& place, int source = 0);

// The checkpoints of a run: the newest ones are kept as ROOT/step-00000050 etc.; ROOT/latest is a link to the newest
// one. See docs/design/checkpoint.md.

// The result of load_newest().
struct LoadedCheckpoint {
  std::string path = {};                              // the checkpoint that was loaded; empty if there is none
  std::vector<std::string> skipped_checkpoints = {};  // newer but damaged checkpoints, each with the reason on one line
};

// Saves and rotates the checkpoints of a run. It locks the folder against other programs. All functions are collective
// over `ranks`; an error on one rank is raised on all ranks.
class DTENSOR_API CheckpointSeries {
 public:
  // Creates `root` and its parents. `keep` >= 1 is the number of checkpoints to keep, without an unfinished one. Throws
  // if another program has locked the folder, or if `root` itself is a checkpoint.
  CheckpointSeries(const std::string& root, const Communicator& ranks, std::int64_t keep);
  CheckpointSeries(CheckpointSeries&&) noexcept;
  CheckpointSeries& operator=(CheckpointSeries&&) noexcept;
  // If finish() was not called: a save in the background is discarded.
  ~CheckpointSeries();

  // Like the free function below. Damaged checkpoints do not count toward `keep`; the next save removes them.
  LoadedCheckpoint load_newest(Checkpoint& state, const LoadOptions& options = {});

  // save() saves `state` for `step`, points `latest` to it and removes older checkpoints beyond `keep`. save_async()
  // does so in the background; the next save or finish() completes it.
  void save(const Checkpoint& state, std::int64_t step, const SaveOptions& options = {});
  void save_async(const Checkpoint& state, std::int64_t step, const SaveOptions& options = {});
  void finish();

 private:
  struct Impl;
  Impl& impl() const;  // throws if this object was moved from

  std::unique_ptr<Impl> impl_;
};

// Path of the checkpoint of a step, for instance ROOT/step-00000050.
DTENSOR_API std::string checkpoint_of_step(const std::string& root, std::int64_t step);
// The steps for which ROOT has a folder, newest first, including damaged ones. Not collective.
DTENSOR_API std::vector<std::int64_t> checkpoint_steps(const std::string& root);

// Loads the newest intact checkpoint below `root`, or `root` itself if it is a checkpoint. Skips damaged checkpoints in
// favor of older ones; throws if all are damaged. Mismatches (another model) throw as in load_state(). If there is no
// checkpoint, the returned path is empty and `state` is unchanged. Collective.
DTENSOR_API LoadedCheckpoint load_newest(Checkpoint& state, const std::string& root, const Communicator& ranks,
                                         const LoadOptions& options = {});

}  // namespace dtensor
