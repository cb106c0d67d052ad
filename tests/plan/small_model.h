// A small decoder and a table of hardware.
#pragma once

#include "dtensor/estimate.h"
#include "plan/workload.h"

namespace plan {

using namespace dtensor;

inline Workload small_model(std::int64_t layers) {
  nn::DecoderConfig config;
  config.vocabulary = 4096, config.hidden = 1024, config.layers = layers, config.ffn = 2048, config.heads = 16;
  config.kv_heads = 8;
  config.ropes = {{.size = 64}};
  return {config.checked(), 32, 1024};
}

inline HardwareModel hardware() {
  HardwareModel h;
  h.rates = {{"product", {{1, 1e14}}},     {"attention", {{1, 1e14}}}, {"norm", {{1, 1e12}}},
             {"elementwise", {{1, 1e12}}}, {"host", {{1, 3e10}}},      {"transfer", {{1, 5e10}}}};
  h.operator_seconds = 1e-6;
  h.asynchronous = true;
  h.peak_flops = {{"bfloat16", 1e14}};
  h.levels = {{"node", 8, 1e-6, 1e11}, {"rack", 1 << 20, 1e-5, 1e10}};
  return h;
}

}  // namespace plan
