// Prints the coverage table, or with a file name writes it there, before what is written there by hand.
#include <fstream>
#include <iostream>
#include <sstream>

#include "coverage/coverage.h"
#include "run_tool.h"

namespace {

int write_to(const std::string& file, const std::string& page) {
  std::ostringstream before;
  before << std::ifstream(file).rdbuf();
  const auto hand_written = before.str().find(dtensor::coverage::kHandWrittenSection);
  std::ofstream out(file);
  out << page << (hand_written == std::string::npos ? "" : before.str().substr(hand_written));
  out.flush();
  TORCH_CHECK(out, "cannot write ", file);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string file;
  CLI::App app("The table of operators and what decides each.", "coverage");
  app.add_option("file", file, "written instead of the output, before what is written there by hand");
  return dtensor::run_tool(app, argc, argv, [&] {
    const std::string page = dtensor::coverage::page(dtensor::coverage::table());
    if (!file.empty()) return write_to(file, page);
    std::cout << page;
    return 0;
  });
}
