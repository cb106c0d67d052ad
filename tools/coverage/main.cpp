// Prints the coverage table, or writes it to a file, before the manual section of that file.
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
  CLI::App app("Prints how each ATen operator runs on DTensors.", "coverage");
  app.add_option("file", file, "file to write, whose manual section is kept; default: standard output");
  return dtensor::run_tool(app, argc, argv, [&] {
    const std::string page = dtensor::coverage::page(dtensor::coverage::table());
    if (!file.empty()) return write_to(file, page);
    std::cout << page;
    return 0;
  });
}
