// Flags that select recorded calls.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "aten_cases/case_file.h"

namespace dtensor::cases {

struct Selection {
  std::string data = {}, op = {};
  int every = 1;

  void add_flags(CLI::App& app) {
    app.add_option("--data", data, "folder with cases.json, tensors.json and tensors.bin")->required(data.empty());
    app.add_option("--op", op, "only operators whose name contains this");
    app.add_option("--every", every, "only every n-th case")->check(CLI::Range(1, 1 << 30));
  }
  bool takes(const Case& c) const { return c.op().find(op) != std::string::npos && c.id() % every == 0; }
  // Throws if no case is selected, with the values of the flags.
  void check_any(bool any) const {
    TORCH_CHECK(any, "no recorded call in ", data, " matches --op '", op, "' --every ", every, " and the other flags");
  }
};

}  // namespace dtensor::cases
