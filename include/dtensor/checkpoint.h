// Checkpoints: a folder of standard safetensors files in which every tensor stands whole, written by all ranks at once
// from any placements and read by all ranks into any others. See docs/design/checkpoint.md.
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
#include "dtensor/named_tensors.h"
#include "dtensor/optim/optimizer.h"
#include "dtensor/placement.h"

namespace dtensor {

// What a folder of another program calls the tensors of a model, and how it cuts, joins and turns them: a table, read
// forwards to load such a folder and backwards to write one.
//
//   StateDictKeyMapping gpt2 = {
//     {.tensor = "layers.*.attn.q_proj.weight", .stored = "h.*.attn.c_attn.weight", .transposed = true,
//      .stored_slice = {.dim = 1, .begin = 0, .count = 768}},                     // a part of a fused tensor
//     {.tensor = "layers.*.moe.experts.w1", .stored = "layers.*.experts.#.w1.weight"},  // a stack of many
//     {.tensor = "**", .stored = "model.**"}};                                 // a rename

// Some indices of one dimension; by default all.
struct IndexRange {
  // The dimension, and the first index.
  std::int64_t dim = 0, begin = 0;
  std::int64_t count = -1;  // -1: to the end
};

// A row of the table.
struct StateDictKeyRule {
  // A pattern over the model's names: "*" is any part of a name between dots, "**" any part. Empty: what is stored
  // under names that match `stored` is passed over (masks, what a later program left there).
  std::string tensor;
  // The name there. Its n-th "*" or "**" is what the pattern's n-th one was; "#" counts the indices of the model's
  // tensor along its first dimension, each of which is a tensor of its own there.
  std::string stored;
  bool transposed = false;       // the last two dimensions are exchanged there
  IndexRange stored_slice = {};  // it is these indices of what is stored, in dimensions as stored
  IndexRange tensor_slice = {};  // it fills these indices of the model's tensor (a fusion here)
};
// Of rows with the same `tensor` all count, together they fill it. Of different patterns that match a name the first
// one counts.
using StateDictKeyMapping = std::vector<StateDictKeyRule>;

// The names and tensors that such a folder has: splits are joined, stacks taken apart, turned ones turned back. Renamed
// tensors are the given ones; the others are new, on the mesh of what they are made of. Tensors that no row names are
// an error, and so are parts that do not make a whole. Collective over the meshes of tensors that are joined or
// unstacked.
DTENSOR_API std::vector<std::pair<std::string, at::Tensor>> map_state_dict_keys(
    const std::vector<std::pair<std::string, at::Tensor>>& tensors, const StateDictKeyMapping& names);

// What is no tensor: step counts, learning rates, notes.
using CheckpointValue = std::variant<bool, std::int64_t, double, std::string>;
using CheckpointValues = std::map<std::string, CheckpointValue>;

// How a checkpoint is written.
struct SaveOptions {
  bool sync = true;  // wait until the disk has it
  // Tensors go on in another file from there; one that is larger has a file of its own.
  std::int64_t max_file_bytes = 5'000'000'000;
  // Files in the folder that are no part of a checkpoint (config.json, a tokenizer, notes) stay in it; without this
  // they make the save an error.
  bool keep_foreign = false;
};

// What is read, and what is an error.
struct LoadOptions {
  bool verify = true;             // checksums, where the checkpoint has them
  bool allow_missing = false;     // what is asked for and not there stays as it is
  bool allow_unexpected = false;  // what is there and not asked for is passed over
  bool allow_cast = false;        // other dtypes are converted
  // A folder of another program: how its tensors are called and cut. A tied tensor is there if any of its names is.
  // Each rank reads the ranges of its own parts. Empty: as save_state() wrote them.
  StateDictKeyMapping names = {};
};

// Writes `directory` (and its parents), replacing a checkpoint of that name when all is written. Called by every rank
// of `ranks`, which holds the ranks of all meshes concerned. Tensors are DTensors on any meshes, those without this
// rank included, and plain tensors and values, equal on every rank that lists them; what is a rank's own has a name of
// its own there. Partial ones are reduced. An error anywhere is an error on every rank and leaves the previous
// checkpoint as it was.
DTENSOR_API void save_state(const std::string& directory, const Communicator& ranks, const StateTensors& tensors,
                            const CheckpointValues& values = {}, const SaveOptions& options = {});

// Fills `targets` and returns the values. Called by every rank of `ranks`, which need be neither as many nor placed as
// those that saved. `path`: such a folder, another program's folder in the layout of HuggingFace, or one .safetensors
// file. All that does not fit is one error (a c10::ValueError), the same on every rank, before anything is written; an
// error while reading or verifying leaves the targets' content undefined.
DTENSOR_API CheckpointValues load_state(const std::string& path, const Communicator& ranks, const StateTensors& targets,
                                        const LoadOptions& options = {});

// Throws where save_state would refuse the folder (it holds other files, it cannot be made, the disk is full), so that
// a program hears of it before hours of work. Makes its parents, and a small file there for a moment. Not collective.
DTENSOR_API void check_can_save(const std::string& directory, const SaveOptions& options = {});

// A save under way: the tensors may be changed again, a thread writes copies of this rank's shards.
class DTENSOR_API PendingSave {
 public:
  struct Impl;
  explicit PendingSave(std::unique_ptr<Impl> impl);
  PendingSave(PendingSave&&) noexcept;
  PendingSave& operator=(PendingSave&&) noexcept;
  // Without wait() before: waits for the thread and leaves `directory` as it was.
  ~PendingSave();
  bool done() const;  // this rank has written its part
  // Finishes as save_state does. Collective over the ranks that began it.
  void wait();

 private:
  std::unique_ptr<Impl> impl_;
};
// As save_state, as far as this rank's parts are copied; the rest follows with PendingSave::wait().
// Where the system gives no thread, this rank's parts are written before it returns.
DTENSOR_API PendingSave save_state_async(const std::string& directory, const Communicator& ranks,
                                         const StateTensors& tensors, const CheckpointValues& values = {},
                                         const SaveOptions& options = {});

// What a checkpoint holds, without reading tensors. Not collective.
struct CheckpointEntry {
  // Of the tensor.
  std::string name = {};
  at::ScalarType dtype = at::ScalarType::Undefined;  // Undefined: one that ATen does not have (F6_E2M3, F6_E3M2)
  // Global sizes.
  std::vector<std::int64_t> sizes = {};
  std::string file = {};               // path
  std::int64_t offset = 0, bytes = 0;  // in the file
  // Of the bytes; none: another program wrote them.
  std::optional<std::uint64_t> checksum = {};
  std::string format_dtype = {};  // as the file calls it: "F32"
};
// Of a whole checkpoint.
struct CheckpointIndex {
  // Its tensors, and what is no tensor.
  std::vector<CheckpointEntry> entries = {};
  CheckpointValues values = {};
};
// Of a folder or file that load_state() takes.
DTENSOR_API CheckpointIndex read_checkpoint_index(const std::string& path);

// Reads all of a checkpoint, in pieces of 4 MiB, and compares every checksum; what is damaged, one sentence each, none
// where it is whole. `path` as for load_state; tensors without a checksum (other programs' files) are only read.
// Not collective: needs no ranks. What tools/verify_checkpoint prints.
DTENSOR_API std::vector<std::string> verify_checkpoint(const std::string& path);

// The whole of a training state under one roof: parts are registered once, by reference, then saved and loaded.
//   Checkpoint state;
//   state.add("model", model).add("optimizer", optimizer).add("step", step).add_random("random", mesh);
//   state.load(directory, world);  // or save, save_async
// References must outlive it. The same parts, in the same order, on every rank.
class DTENSOR_API Checkpoint {
 public:
  // Registers a part. What the variable holds by then is saved, and is read into: sizes and dtype must be the stored
  // ones, as in load_state().
  Checkpoint& add(const std::string& name, at::Tensor& tensor);
  Checkpoint& add(const std::string& prefix, const NamedTensors& tensors);  // names `prefix.name`; "": `name`
  Checkpoint& add(const std::string& prefix, const StateTensors& handles);  // read into in place
  // Tensors `prefix.<parameter>.exp_avg`, values `prefix.<parameter>.step`, as state_dict() names them.
  Checkpoint& add(const std::string& prefix, Optimizer& optimizer);
  Checkpoint& add(const std::string& name, std::int64_t& value);
  Checkpoint& add(const std::string& name, double& value);
  Checkpoint& add(const std::string& name, bool& value);
  Checkpoint& add(const std::string& name, std::string& value);
  // Values `prefix.<name>`. What it holds must be there, of whatever kind; other values of the prefix that no other
  // part asks for are added where `takes` says so of their names (without the prefix), or all of them without it.
  Checkpoint& add(const std::string& prefix, CheckpointValues& values,
                  const std::function<bool(const std::string&)>& takes = {});
  Checkpoint& add(const std::string& prefix, GradScaler& scaler);  // values `prefix.scale`, `prefix.good_steps`
  // The state of the mesh's world's random numbers, as `prefix.seed` and `prefix.counter`.
  Checkpoint& add_random(const std::string& prefix, const DeviceMesh& mesh);

  // A model that lists its parameters, and buffers where it has any.
  template <class Model>
  requires requires(Model& m) { NamedTensors(m.named_parameters()); }
  Checkpoint& add(const std::string& prefix, Model& model) {
    add(prefix, NamedTensors(model.named_parameters()));
    if constexpr (requires { NamedTensors(model.named_buffers()); }) add(prefix, NamedTensors(model.named_buffers()));
    return *this;
  }
  // A torch::nn::Module, which hands out handles.
  template <class Model>
  requires requires(Model& m) { m.named_parameters().begin()->value(); }
  Checkpoint& add(const std::string& prefix, Model& model) {
    StateTensors handles;
    for (const auto& item : model.named_parameters()) handles.emplace_back(item.key(), item.value());
    for (const auto& item : model.named_buffers()) handles.emplace_back(item.key(), item.value());
    return add(prefix, handles);
  }

  // As save_state and save_state_async, of all parts.
  void save(const std::string& directory, const Communicator& ranks, const SaveOptions& options = {}) const;
  PendingSave save_async(const std::string& directory, const Communicator& ranks,
                         const SaveOptions& options = {}) const;
  // Values, random state and optimizers change only when everything was read and verified; values and random state not
  // where an optimizer then throws.
  void load(const std::string& path, const Communicator& ranks, const LoadOptions& options = {});

  struct Part;

 private:
  Checkpoint& add(std::unique_ptr<Part> part);
  std::pair<StateTensors, CheckpointValues> collect() const;
  std::vector<std::shared_ptr<Part>> parts_;
};

// A state that only one rank has, whole and plain, given to all: each keeps its part. Tensor by tensor in pieces of at
// most 4 MiB, so that no rank ever holds more than its shards and a buffer. `full` counts on rank `source` of `ranks`
// only. Names, sizes and dtypes that do not fit are one error on every rank. Collective.
DTENSOR_API void broadcast_state(const StateTensors& full, const Communicator& ranks, const StateTensors& targets,
                                 int source = 0);
// The same into new DTensors on `mesh`, placed as `place` says; in the order of `full`, on every rank.
using StatePlacementFn = std::function<Placements(const std::string& name, at::IntArrayRef sizes)>;
DTENSOR_API StateTensors broadcast_state(const StateTensors& full, const DeviceMesh& mesh,
                                         const StatePlacementFn& place, int source = 0);

// The checkpoints of one run: ROOT/step-00000050 and so on, the newest few of them, and ROOT/latest, a link to the
// newest. See docs/design/checkpoint.md.

// What was taken up.
struct LoadedCheckpoint {
  std::string path = {};                              // empty: there was none
  std::vector<std::string> skipped_checkpoints = {};  // newer ones that are damaged, each with why, on one line
};

// Saves a run's checkpoints. While it lives no other program has a series in that folder. Every function is collective
// over `ranks`, and an error on one rank is the same error on all.
class DTENSOR_API CheckpointSeries {
 public:
  // Makes `root`, its parents too. `keep` >= 1: how many stay, the one being saved not counted until it is whole.
  // Throws where another program saves there, and where `root` is itself a checkpoint.
  CheckpointSeries(const std::string& root, const Communicator& ranks, std::int64_t keep);
  CheckpointSeries(CheckpointSeries&&) noexcept;
  CheckpointSeries& operator=(CheckpointSeries&&) noexcept;
  // Without finish() before: what is being saved in the background is given up.
  ~CheckpointSeries();

  // As the function below. The damaged ones do not count among those to keep, and go with the next save.
  LoadedCheckpoint load_newest(Checkpoint& state, const LoadOptions& options = {});

  // Saves `state` as that of `step`, then points `latest` at it and removes what is more than `keep` of its past. In
  // the background: a later save or finish() does the rest.
  void save(const Checkpoint& state, std::int64_t step, const SaveOptions& options = {});
  void save_async(const Checkpoint& state, std::int64_t step, const SaveOptions& options = {});
  void finish();

 private:
  struct Impl;
  Impl& impl() const;  // throws where this was moved from

  std::unique_ptr<Impl> impl_;
};

// ROOT/step-00000050.
DTENSOR_API std::string checkpoint_of_step(const std::string& root, std::int64_t step);
// The steps that ROOT has folders of, whole or not, the newest first. Not collective.
DTENSOR_API std::vector<std::int64_t> checkpoint_steps(const std::string& root);

// Loads the newest whole checkpoint below `root`, or `root` itself where it is a checkpoint; a damaged one is passed
// over for the one before. What does not fit (another model) is an error as in load_state, and so is a folder in which
// all are damaged. Nothing there: an empty path, and `state` is as it was. Collective.
DTENSOR_API LoadedCheckpoint load_newest(Checkpoint& state, const std::string& root, const Communicator& ranks,
                                         const LoadOptions& options = {});

}  // namespace dtensor
