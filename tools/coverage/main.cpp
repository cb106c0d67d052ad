// Prints the coverage table, or with a file name writes it there, before what is written there by hand.
#include <fstream>
#include <iostream>
#include <sstream>

#include "coverage/coverage.h"
#include "dtensor/launch.h"

int main(int argc, char** argv) {
  const std::string page = dtensor::coverage::page(dtensor::coverage::table());
  if (argc == 1) {
    std::cout << page;
    return dtensor::finish_output(0);
  }
  std::ostringstream before;
  before << std::ifstream(argv[1]).rdbuf();
  const auto by_hand = before.str().find(dtensor::coverage::kByHand);
  std::ofstream out(argv[1]);
  out << page << (by_hand == std::string::npos ? "" : before.str().substr(by_hand));
  out.flush();
  return out ? 0 : 1;
}
