// Any run of the program trains as one device does, with any stages, parallelism within stages, batch and split of
// sequences.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "dtensor/pipeline_schedule.h"
#include "resume.h"
#include "support/draws.h"
#include "train/layouts/compare.h"

namespace {

using dtensor::test::one_of;
using train::MeshShape;
using train::Options;

// A mesh of up to 8 ranks.
MeshShape any_mesh() {
  MeshShape mesh{.pp = one_of<std::int64_t>({1, 2, 2, 3, 4})};
  for (std::int64_t* axis : {&mesh.shard, &mesh.tp, &mesh.cp, &mesh.replicate}) {
    if (mesh.size() <= 4 && one_of({true, false})) *axis = 2;
  }
  return mesh;
}

void any_experts(Options& o) {
  auto& experts = o.experts.emplace();
  experts.experts = 4;
  experts.ep = one_of<std::int64_t>({1, o.mesh->shard * o.mesh->replicate > 1 ? 2 : 1});
  experts.balance = one_of<std::string>({"none", "bias", "aux"});
  experts.show_load = false;
}

void any_attention(Options& o) {
  o.seq = one_of<std::int64_t>({4, 5, 7});
  o.rope = one_of({false, true});
  o.kv_heads = one_of<std::int64_t>({0, 1, 2});
  o.documents = one_of({false, true});
  if (o.mesh->cp == 1) return;
  o.cp_strategy = one_of<std::string>({"auto", "ring", "gather", "ulysses"});
  o.zigzag_sequence = one_of({false, true});
}

Options any_options() {
  Options o = resume::options(one_of<std::string>({"adamw", "sgd"}));
  o.mesh = any_mesh();
  o.schedule = *rc::gen::elementOf(dtensor::pipeline::schedule_names());
  o.microbatches = one_of({1, 2, 3, 5, 8});
  o.batch = o.microbatches * 4 + *rc::gen::inRange(0, 4);
  o.layers = 2 * o.mesh->pp;
  o.steps = 3;
  o.dropout = one_of({0.0, 0.1});
  o.clip = one_of({0.0, 0.5});
  o.checkpoint_activations = one_of({false, true});
  o.reshard = one_of<std::string>({"true", "false"});
  o.loss_parallel = o.mesh->tp > 1 && one_of({false, true});
  o.sequence_parallel = o.mesh->tp > 1 && one_of({false, true});
  o.dtype = one_of({train::Dtype::float64, train::Dtype::float32});
  if (o.dtype == train::Dtype::float32) {
    o.steps = 20;
    o.bf16 = one_of({false, true});
  }
  if (one_of({false, false, true})) any_experts(o);
  any_attention(o);
  return o;
}

std::string str(const Options& o) {
  return c10::str(o.mesh->str(), " ", o.schedule, ", ", o.microbatches, " microbatches of ", o.batch, " in ",
                  o.grad_accum, ", ", train::to_string(o.dtype), o.bf16 ? " bf16" : "", ", ", o.optimizer, ", dropout ",
                  o.dropout, ", clip ", o.clip, o.checkpoint_activations ? ", recomputed" : "", ", reshard ", o.reshard,
                  o.loss_parallel ? ", loss parallel" : "", o.sequence_parallel ? ", sequence parallel" : "",
                  ", sequences of ", o.seq, o.rope ? ", rope" : "", ", kv heads ", o.kv_heads,
                  o.documents ? ", documents" : "", ", ", o.cp_strategy, o.zigzag_sequence ? ", zigzag" : "",
                  o.experts ? ", experts over " + std::to_string(o.experts->ep) + " " + o.experts->balance : "");
}

void any_pipeline_has_the_curve_of_one_device() {
  const Options o = any_options();
  std::vector<train::StepRecord> records;
  dtensor::run_local(static_cast<int>(o.mesh->size()), [&](dtensor::Communicator world) {
    const auto mine = train::train_on_mesh(world, o, resume::corpus(), {});
    if (world.rank() == 0) records = mine;
  });
  const auto compared = train::compare_with_one_device(o, resume::corpus(), records);
  RC_ASSERT(compared.equal() || (RC_LOG() << str(o) << ": " << compared.largest << " of " << compared.bound, false));
}

// A run takes seconds.
TEST(Stages, AnyPipelineMatchesSingleDevice) {
  dtensor::test::check_property("any pipeline has the curve of one device", any_pipeline_has_the_curve_of_one_device,
                                12);
}

}  // namespace
