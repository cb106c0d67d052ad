// Runs one case in twenty on MPI processes, under every placement, and compares with the results of one device.
#include <iostream>

#include "aten_cases/run_case.h"
#include "dtensor/launch.h"
#include "support/data.h"

namespace {

using namespace dtensor;

constexpr int kOneIn = 20;

void run(const Communicator& world) {
  int runs = 0;
  for (const cases::Case& c : cases::load_cases(test::data_path("aten_cases"))) {
    if (c.id() % kOneIn != 0) continue;
    for (const cases::Config* config : cases::distinct_configs(c)) {
      try {
        cases::run_on_rank(c, *config, world, cases::recorded(c));
      } catch (const std::exception& e) {
        throw std::runtime_error(config->name + " " + c.text() + ": " + e.what());
      }
      ++runs;
    }
  }
  if (world.rank() == 0) std::cout << runs << " runs on " << world.size() << " processes" << std::endl;
}

}  // namespace

int main(int argc, char** argv) { return dtensor::launch(argc, argv, run); }
