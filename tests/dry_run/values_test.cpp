// What a dry run does with values: small tensors are real, and a read of a value that does not exist is one clear
// error.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "dtensor/dry_run.h"
#include "dtensor/fully_shard.h"
#include "dtensor/launch.h"
#include "dtensor/mesh.h"
#include "dtensor/nn.h"
#include "dtensor/tensor.h"

namespace dry {
namespace {

using dtensor::Communicator;

// The message of the error that a dry run of `fn` throws; empty: none.
std::string error_of(const std::function<void(Communicator)>& fn, std::optional<double> number = {}) {
  try {
    dtensor::dry_run({.ranks = 4, .rank = 1, .number = number}, fn);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

void expect_error(const std::string& message, const std::vector<std::string>& parts) {
  for (const auto& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "'" << message << "' has no " << part;
}

constexpr std::int64_t kLarge = 4096;

TEST(DryRunValues, ItemNamesOperatorAndModule) {
  const std::string module = "loss";
  const auto read = [&](const Communicator&) {
    const dtensor::ModuleScope scope(module);
    at::randn({kLarge}).sum().item<float>();
  };
  expect_error(error_of(read), {"aten::_local_scalar_dense in loss", "depends on values of a tensor", "is_dry_run()"});
  EXPECT_EQ(error_of(read, 2), "");
}

TEST(DryRunValues, DeclaredNumberIsForFloatingPointOnly) {
  const auto branch = [](const Communicator&) { (void)at::randn({kLarge}).gt(0).any().item<bool>(); };
  expect_error(error_of(branch, 1), {"a number that is read depends on values"});
}

TEST(DryRunValues, SizesThatDependOnData) {
  const auto select = [](const Communicator&) { at::randn({kLarge}).nonzero(); };
  expect_error(error_of(select), {"aten::nonzero", "the size of a result depends on values"});
}

TEST(DryRunValues, DataPointer) {
  const auto fill = [](const Communicator&) { at::empty({kLarge}).mutable_data_ptr<float>()[0] = 1; };
  expect_error(error_of(fill), {"a dry run computes sizes, not values", "is_dry_run()"});
}

TEST(DryRunValues, DTensorErrorsHaveTheirContext) {
  const auto read = [](const Communicator& world) {
    const auto mesh = dtensor::init_device_mesh(world, at::kCPU, {4}, {"dp"});
    const auto t = dtensor::distribute_tensor(at::randn({kLarge, 4}), mesh, {dtensor::Shard(0)});
    at::nonzero(t);
  };
  expect_error(error_of(read), {"in aten::nonzero(f32[4096, 4]", "DeviceMesh(cpu, dp=4"});
}

TEST(DryRunValues, SmallTensorsAreReal) {
  dtensor::dry_run({.ranks = 4}, [](const Communicator& world) {
    EXPECT_TRUE(dtensor::is_dry_run());
    EXPECT_EQ(at::arange(8).sum().item<std::int64_t>(), 28);
    const auto counts = at::full({2}, 3, at::kLong);
    world.all_reduce(counts, dtensor::ReduceOp::sum).wait();
    EXPECT_EQ(counts[0].item<std::int64_t>(), 12);
    const auto small = at::zeros({2});
    small.copy_(at::randn({kLarge}).narrow(0, 0, 2));
    EXPECT_THROW(small.data_ptr<float>(), c10::Error);
  });
  EXPECT_FALSE(dtensor::is_dry_run());
}

TEST(DryRunValues, MemoryIsCountedAndNotAllocated) {
  const std::int64_t rows = std::int64_t{1} << 20;
  const auto report = dtensor::dry_run({.ranks = 1}, [&](const Communicator&) {
    const auto weight = at::empty({rows, rows});  // 4 TB
    EXPECT_EQ(weight.mm(weight).sizes(), weight.sizes());
  });
  EXPECT_EQ(report.peak.bytes, 8 * rows * rows);
  EXPECT_EQ(report.operators.at("aten::mm").flops, 2 * rows * rows * rows);
  EXPECT_FALSE(report.fits(80'000'000'000));
}

// A small shard of a gradient is real memory, to which a collective writes unknown values.
TEST(DryRunValues, UnknownSmallGradientsAreOfTheirKind) {
  const auto report = dtensor::dry_run({.ranks = 4}, [](const Communicator& world) {
    dtensor::nn::Linear linear(64, 8);
    fully_shard(linear, dtensor::init_device_mesh(world, at::kCPU, {4}, {"dp"}));
    linear.forward(at::ones({kLarge, 64})).sum().backward();
    const auto highest = at::empty({std::int64_t{1} << 20});
  });
  const auto bytes = [&](dtensor::MemoryKind kind) { return report.peak_by_kind[static_cast<std::size_t>(kind)]; };
  EXPECT_EQ(bytes(dtensor::MemoryKind::gradient), bytes(dtensor::MemoryKind::parameter));
  EXPECT_EQ(bytes(dtensor::MemoryKind::gradient), (64 * 8 + 8) / 4 * 4);
}

TEST(DryRunValues, ImpossibleRequests) {
  expect_error(error_of([](const Communicator& world) {
                 dtensor::init_device_mesh(world, at::kCPU, {3, 2});
               }),
               {"ranks, but the world has 4"});
  EXPECT_THROW(dtensor::dry_run({.ranks = 2, .rank = 2}, [](const Communicator&) {}), c10::Error);
}

TEST(DryRunValues, LaunchFlag) {
  std::vector<std::string> words = {"program", "--dtensor-simulate", "100000:7", "--mesh", "a=9999,b=9999"};
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  int size = 0, rank = 0;
  testing::internal::CaptureStdout();
  const int status = dtensor::launch(static_cast<int>(argv.size()), argv.data(),
                                     [&](const Communicator& world) { size = world.size(), rank = world.rank(); });
  EXPECT_NE(testing::internal::GetCapturedStdout().find("rank 7 of 100000"), std::string::npos);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(size, 100000);
  EXPECT_EQ(rank, 7);
}

// A step on bags of `mode`, whose kernel determines the sizes of some results.
struct BagStep {
  std::int64_t mode, rows, bags;
  void operator()(const Communicator& world) const {
    const auto mesh = dtensor::init_device_mesh(world, at::kCPU, {2}, {"shard"});
    at::Tensor table = at::ones({rows, 64}).requires_grad_();
    dtensor::fully_shard(dtensor::NamedTensors{{"table", &table}}, mesh);
    const auto replicated = [&](const at::Tensor& t) {
      return dtensor::distribute_tensor(t, mesh, {dtensor::Replicate()});
    };
    const auto indices = replicated(at::arange(bags * 3).remainder(rows)), offsets = replicated(at::arange(bags) * 3);
    std::get<0>(at::embedding_bag(table, indices, offsets, false, mode)).square().sum().backward();
  }
};

std::vector<std::int64_t> received(const dtensor::DryRunReport& report) {
  std::vector<std::int64_t> bytes;
  for (const auto& [name, count] : report.collectives) bytes.push_back(count.bytes);
  return bytes;
}

TEST(DryRunValues, EmbeddingBagHasTheMemoryOfARealStep) {
  for (const std::int64_t mode : {0, 1, 2}) {
    const BagStep step{mode, 4000, 20};
    dtensor::DryRunReport measured;
    dtensor::run_local(2, [&](const Communicator& world) {
      const dtensor::StepRecorder recorder;
      step(world);
      if (world.rank() == 1) measured = recorder.report(world);
    });
    const auto predicted = dtensor::dry_run({.ranks = 2, .rank = 1}, step);
    EXPECT_EQ(received(predicted), received(measured)) << mode;
    // Temporaries of kernels have the sizes of bags, which are small beside the table.
    const auto exact = static_cast<double>(measured.peak.bytes);
    EXPECT_NEAR(static_cast<double>(predicted.peak.bytes), exact, 0.01 * exact) << mode;
  }
}

// The backend of a real run decides whether collectives copy into buffers of their own.
TEST(DryRunValues, LaunchFlagOfTheBackend) {
  const auto report_for = [](std::string backend) {
    std::vector<std::string> words = {"program", "--dtensor-simulate", "2", "--backend", std::move(backend)};
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    testing::internal::CaptureStdout();
    dtensor::launch(static_cast<int>(argv.size()), argv.data(), [&](const Communicator& world) {
      const auto mesh = dtensor::init_device_mesh(world, at::kCPU, {2}, {"dp"});
      dtensor::DTensor::from_local(at::zeros({1 << 20}), mesh, {dtensor::Partial()})
          .redistribute({dtensor::Replicate()});
    });
    return testing::internal::GetCapturedStdout();
  };
  const std::string threads = report_for("local");
  EXPECT_NE(threads, report_for("mpi"));
  EXPECT_EQ(report_for("mpi"), report_for("socket"));
}

}  // namespace
}  // namespace dry
