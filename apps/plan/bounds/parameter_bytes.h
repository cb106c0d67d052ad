// Memory of a rank's parameters in a layout, at least: for bounds.
#pragma once

#include "plan/cost/model_size.h"

namespace plan {

class ParameterBytes {
 public:
  explicit ParameterBytes(const ModelSize& size) : size_(size) {}

  // Parameters of a rank.
  double count(const dtensor::ParallelLayout& layout) const;
  // Those with the states of the optimizer, and with the gradients, too: in device memory.
  double stored(const dtensor::ParallelLayout& layout) const;
  double updated(const dtensor::ParallelLayout& layout) const;
  // All of these that are in host memory.
  double host(const dtensor::ParallelLayout& layout) const;
  // Gathered parameters that stay for the step.
  double unsharded(const dtensor::ParallelLayout& layout) const;
  // Sums of unsharded gradients over microbatches, from the first backward pass on.
  double gradient_sums(const dtensor::ParallelLayout& layout) const;

  // Whether a rank gathers its parameters. One that keeps all casts them where they are used: its cost and those of
  // shards do not bound each other.
  static bool gathers(const dtensor::ParallelLayout& l) { return l.shard * l.cp > 1; }

 private:
  double dense(const dtensor::ParallelLayout& layout) const;  // besides experts
  double experts(const dtensor::ParallelLayout& layout) const;

  ModelSize size_;
};

}  // namespace plan
