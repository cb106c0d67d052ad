// Loss scaling for half-precision gradients: scaling keeps small gradients above the smallest half number. A step with
// infinite or NaN gradients is skipped, on all ranks alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "dtensor/export.h"
#include "dtensor/mesh.h"

namespace dtensor {

// As torch.amp.GradScaler:
//   scaler.scale(loss).backward();  scaler.unscale_(parameters);  clip...;  scaler.step(parameters, [&] {
//   optimizer.step(); }); scaler.update();
class DTENSOR_API GradScaler {
 public:
  // The scale, and how it changes.
  struct Options {
    // The initial scale, its factor after growth_interval steps without overflow, and its factor after an overflow.
    double init_scale = 65536, growth_factor = 2, backoff_factor = 0.5;
    std::int64_t growth_interval = 2000;  // steps without overflow before the scale grows
    // false: the scale is 1 and no step is skipped, regardless of set_state().
    bool enabled = true;
    // The ranks that skip a step together if they do not list the same parameters. Needed for a pipeline, whose stages
    // have regular tensors or parameters that other ranks do not list. Default: the meshes of the parameters.
    DeviceMesh mesh = {};
  };
  struct State {
    double scale = 0;
    std::int64_t good_steps = 0;
  };
  GradScaler() : GradScaler(Options()) {}
  explicit GradScaler(const Options& options);

  at::Tensor scale(const at::Tensor& loss) const;  // differentiable; float if the loss is half
  // Divides the gradients of `parameters` by the scale, in place, and returns whether they are finite on all ranks.
  // Accepts DTensors on any meshes and regular tensors. Collective over their meshes, or over the world if there are
  // regular tensors besides DTensors that do not cover it. Every rank passes the same list, including parameters that
  // have no gradient on this rank or whose mesh does not contain it. A rank outside all of the meshes does not get the
  // result. With options.mesh, collective over that mesh, and each of its ranks may pass its own list. Call it at most
  // once between updates for a parameter. An unreduced gradient is an error on all of these ranks, and no gradient is
  // changed.
  bool unscale_(const std::vector<at::Tensor>& parameters);
  // Unscales those parameters for which unscale_() was not called (each of several optimizers has its own), and runs
  // `step` if the gradients are finite. Returns whether it ran.
  bool step(const std::vector<at::Tensor>& parameters, const std::function<void()>& step);
  void update();  // sets the next scale by all unscale_() results; no change without any

  // The scale of the next loss, and the state that a checkpoint needs.
  double get_scale() const { return options_.enabled ? state_.scale : 1; }
  State state() const { return state_; }
  void set_state(State state);

 private:
  Options options_;
  State state_;
  std::unordered_map<const c10::TensorImpl*, bool> unscaled_;  // since the last update: whether finite
};

}  // namespace dtensor
