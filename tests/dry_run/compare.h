// A dry run of apps/train beside the same steps on thread ranks.
#pragma once

#include <string>

#include "dtensor/dry_run.h"
#include "train/layouts/dry_run.h"
#include "train/program.h"
#include "train/run.h"

namespace dry {

struct Reports {
  dtensor::DryRunReport predicted, measured;
};

// The steps from the second one are reported.
inline void train_two_steps(const dtensor::Communicator& world, const train::Options& options,
                            const train::Corpus& corpus) {
  train::train_on_mesh(world, options, corpus, [](const train::StepRecord& record) {
    if (record.step == 0) dtensor::StepRecorder::begin_step();
  });
}

inline Reports compare(train::Options options, const train::Corpus& corpus, int rank) {
  options.device = "cpu";
  if (options.experts) options.experts->show_load = false;
  Reports reports;
  const auto ranks = static_cast<int>(options.mesh->size());
  dtensor::run_local(ranks, [&](const dtensor::Communicator& world) {
    const dtensor::StepRecorder recorder;
    train_two_steps(world, options, corpus);
    if (world.rank() == rank) reports.measured = recorder.report(world);
  });
  reports.predicted =
      dtensor::dry_run({.ranks = ranks, .rank = rank, .number = 1},
                       [&](const dtensor::Communicator& world) { train_two_steps(world, options, corpus); });
  return reports;
}

}  // namespace dry
