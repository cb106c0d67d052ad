// For any model of the examples, any hardware and any limit of memory, the layout that `train --plan-search` finds runs
// on thread ranks, and its losses are those of one device.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <fstream>
#include <iostream>

#include "dtensor/launch.h"
#include "plan/any_hardware.h"
#include "support/data.h"
#include "support/draws.h"
#include "support/folder.h"
#include "train/layouts/compare.h"
#include "train/layouts/search.h"
#include "train/run.h"

namespace plan {
namespace {

using dtensor::HardwareModel;
using dtensor::test::one_of;
using train::Options;

const train::Corpus& corpus() {
  static const auto text = train::Corpus::read({dtensor::test::data_path("oracles/transformer.json")}, 16);
  return text;
}

void any_experts(Options& o) {
  auto& e = o.experts.emplace();
  e.experts = one_of<std::int64_t>({8, 16});
  e.top_k = one_of<std::int64_t>({1, 2});
  e.shared = one_of<std::int64_t>({0, 16});
  e.dispatcher = one_of<std::string>({"all-to-all", "all-gather"});
  e.balance = one_of<std::string>({"none", "bias"});
  e.show_load = false;
}

// 8 ranks.
Options any_model() {
  Options o;
  o.ranks = 8, o.device = "cpu", o.steps = 3, o.warmup = 1, o.seq = 16;
  o.batch = one_of<std::int64_t>({8, 16, 32});
  o.hidden = one_of<std::int64_t>({32, 64, 96});
  o.layers = one_of<std::int64_t>({1, 2, 4, 6});
  o.kv_heads = one_of<std::int64_t>({0, 1, 2});
  o.rope = one_of({false, true});
  o.documents = one_of({false, true});
  o.fused_loss = one_of({false, true});
  o.predict_tokens = one_of<std::int64_t>({1, 1, 2});
  o.dropout = one_of({0.0, 0.0, 0.1});
  o.optimizer = one_of<std::string>({"adamw", "sgd"});
  o.dtype = one_of({train::Dtype::float64, train::Dtype::float32});
  if (one_of({false, false, true})) any_experts(o);
  return o;
}

dtensor::LayoutPlan found(const Options& o, const HardwareModel& hardware) {
  auto plan = train::search(o, corpus(), hardware);
  RC_ASSERT(!plan.fitting.empty());
  return plan;
}

// Halves the memory until nothing fits; each refusal names what is largest.
void shrink_memory(Options& o, const HardwareModel& hardware) {
  const auto free = found(o, hardware);
  o.memory_limit = 0.7e-9 * static_cast<double>(free.fitting.front().cost.peak_bytes);
  const auto tight = train::search(o, corpus(), hardware);
  RC_ASSERT(!tight.too_large.empty());
  const auto& problem = tight.too_large.back().problem;
  const bool named = problem.find("needs ") == 0 && problem.find(" of ") != std::string::npos &&
                     problem.find("B: ") != std::string::npos;
  RC_ASSERT((named || problem == "a variant with less memory does not fit") || (RC_LOG() << problem, false));
  if (tight.fitting.empty()) o.memory_limit = 0;
}

void found_layout_runs() {
  auto o = any_model();
  const auto hardware = any_hardware();
  if (one_of({false, true})) shrink_memory(o, hardware);
  const dtensor::test::Folder folder;
  o.plan_search = folder / "hardware.json", o.plan_out = folder / "plan.json";
  std::ofstream(o.plan_search) << hardware.json();
  testing::internal::CaptureStdout();
  const int status = train::report_search(o, corpus());
  const std::string table = testing::internal::GetCapturedStdout();
  RC_ASSERT(status == 0 || (RC_LOG() << table, false));
  o.plan = o.plan_out;
  const auto planned = train::with_plan(o);
  const auto layout = table.substr(table.find("-> "), table.find('\n', table.find("-> ")) - table.find("-> "));
  std::cout << layout << (o.experts ? " (experts)" : "") << "\n";
  std::vector<train::StepRecord> records;
  dtensor::run_local(8, [&](const dtensor::Communicator& world) {
    const auto mine = train::train_on_mesh(world, planned, corpus(), {});
    if (world.rank() == 0) records = mine;
  });
  const auto compared = train::compare_with_one_device(planned, corpus(), records);
  RC_ASSERT(compared.equal() || (RC_LOG() << layout << compared.largest << " of " << compared.bound, false));
}

// RC_PARAMS="max_success=20" runs as many.
TEST(SearchRuns, FoundLayoutsEqualOneDevice) {
  dtensor::test::check_property("the layout of a search equals one device", found_layout_runs, 2);
}

}  // namespace
}  // namespace plan
