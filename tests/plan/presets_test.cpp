// Presets have the published numbers of parameters, and tables of hardware can be read.
#include <gtest/gtest.h>

#include <filesystem>

#include "llm/hf_config.h"
#include "plan/decoder_cost.h"
#include "program_data.h"

namespace plan {
namespace {

const std::string kData = program_data("plan");

Workload preset(const std::string& name) { return {llm::read_family(kData + "/presets/" + name).config, 16, 4096}; }

// Billions of parameters, all and those that a token uses, as in the models' descriptions.
struct Published {
  const char* name;
  double all, active, tolerance;
};

TEST(Presets, HaveThePublishedNumbersOfParameters) {
  for (const auto& [name, all, active, tolerance] :
       {Published{"llama3-8b", 8.03, 8.03, 0.1}, Published{"llama3-70b", 70.55, 70.55, 0.3},
        Published{"llama3-405b", 405.9, 405.9, 1}, Published{"mixtral-8x7b", 46.7, 12.9, 0.1},
        Published{"qwen3-235b-a22b", 235.1, 22.2, 1}, Published{"deepseek-v3", 671, 37.6, 1}}) {
    const auto work = preset(name);
    const auto size = size_of(work);
    const auto embedding = static_cast<double>(work.model.vocabulary * work.model.hidden);
    EXPECT_NEAR(1e-9 * size.parameters, all, tolerance) << name;
    EXPECT_NEAR(1e-9 * (size.active_weights + embedding), active, tolerance) << name;
  }
}

TEST(Presets, HardwareTablesAreComplete) {
  for (const auto& entry : std::filesystem::directory_iterator(kData + "/hardware")) {
    const auto hardware = dtensor::HardwareModel::read(entry.path().string());
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (int kind = 0; kind < 4; ++kind) {
        EXPECT_GT(hardware.seconds({.kind = static_cast<dtensor::StepTrace::Kind>(kind),
                                    .dtype = dtype,
                                    .flops = kind < 2 ? 1'000'000 : 0,
                                    .bytes = 1'000'000}),
                  0);
      }
    }
    EXPECT_GT(hardware.memory_bytes, 0);
  }
}

}  // namespace
}  // namespace plan
