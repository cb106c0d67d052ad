// Loss scaling for half-precision gradients: small gradients are lifted above the smallest half number, and steps with
// overflown ones are skipped, on all ranks alike.
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
    // The first scale; its factors after growth_interval steps without and after one with an overflow.
    double init_scale = 65536, growth_factor = 2, backoff_factor = 0.5;
    std::int64_t growth_interval = 2000;  // steps without overflow before the scale grows
    // Off: scales by 1 and skips nothing, whatever state is set.
    bool enabled = true;
    // The ranks that skip a step together, where they do not all know of the same parameters: those of a pipeline,
    // whose stages have plain ones or are known to their own ranks alone. None: those of the parameters' meshes.
    DeviceMesh mesh = {};
  };
  struct State {
    double scale = 0;
    std::int64_t good_steps = 0;
  };
  GradScaler() : GradScaler(Options()) {}
  explicit GradScaler(const Options& options);

  at::Tensor scale(const at::Tensor& loss) const;  // differentiable; in float where the loss is half
  // Divides the gradients of `parameters`, DTensors on any meshes and plain ones, by the scale, in place. Whether all
  // ranks found them finite. Collective over their meshes (over the world, where plain ones are among DTensors that do
  // not cover it): every rank gives the same list, parameters included that have no gradient here or whose mesh it is
  // not in; a rank outside all of the meshes is not told. With options.mesh collective over that, and each of its ranks
  // may give a list of its own, of parameters on these ranks. At most once before update() for a parameter. A gradient
  // that is not reduced yet is an error on all of these ranks, and then none is changed.
  bool unscale_(const std::vector<at::Tensor>& parameters);
  // Unscales those for which that was not done (each optimizer of several has parameters of its own), and runs `step`
  // if the gradients were finite; whether it did.
  bool step(const std::vector<at::Tensor>& parameters, const std::function<void()>& step);
  void update();  // the scale for the next step, by all that was unscaled; as it is, if nothing was

  // The scale of the next loss, and all that a checkpoint needs.
  double get_scale() const { return options_.enabled ? state_.scale : 1; }
  State state() const { return state_; }
  void set_state(State state);

 private:
  Options options_;
  State state_;
  std::unordered_map<const c10::TensorImpl*, bool> unscaled_;  // since the last update: whether they were finite
};

}  // namespace dtensor
