// Use of a moved-from object throws an error and does not end the program.
#include "checkpoint/folder.h"
#include "dtensor/checkpoint.h"
#include "dtensor/fully_shard.h"
#include "dtensor/pipeline.h"
#include "reported_errors.h"

namespace dtensor {
namespace {

template <class Use>
void expect_rejected(Use&& use) {
  const std::string text = test::error_of(use);
  EXPECT_NE(text.find("moved from"), std::string::npos) << text;
}

TEST(MovedFrom, UseOfPipelineIsAnError) {
  run_local(2, [](const Communicator& world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"pp"});
    const auto loss = [](const pipeline::Tensors& outputs, const pipeline::Tensors&) { return outputs[0].sum(); };
    pipeline::Pipeline pipeline(mesh, pipeline::make_schedule("1f1b", 2, 2), loss);
    const pipeline::Pipeline taken(std::move(pipeline));
    expect_rejected([&] { (void)pipeline.stages(); });
    expect_rejected([&] { pipeline.step({}, {}); });
    expect_rejected([&] { pipeline.set_stage(0, [](const pipeline::Tensors& inputs) { return inputs; }); });
    EXPECT_EQ(taken.stages().size(), 1U);
  });
}

TEST(MovedFrom, UseOfFsdpUnitIsAnError) {
  run_local(2, [](const Communicator& world) {
    at::Tensor weight = at::ones({4, 4}).requires_grad_();
    FsdpUnit unit = fully_shard(NamedTensors{{"weight", &weight}}, init_device_mesh(world, at::kCPU, {2}, {"shard"}));
    const FsdpUnit taken(std::move(unit));
    expect_rejected([&] { (void)unit.shard_bytes(); });
    expect_rejected([&] { unit.unshard(); });
    EXPECT_EQ(taken.shard_bytes(), 32);
  });
}

TEST(MovedFrom, UseOfCheckpointSeriesIsAnError) {
  const test::Folder folder;
  run_local(2, [&](const Communicator& world) {
    CheckpointSeries series(folder / "moved_from", world, 1);
    const CheckpointSeries taken(std::move(series));
    expect_rejected([&] { series.finish(); });
  });
}

}  // namespace
}  // namespace dtensor
