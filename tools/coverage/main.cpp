// Prints the coverage table, or with a file name writes it there.
#include <fstream>
#include <iostream>

#include "coverage/coverage.h"
#include "dtensor/launch.h"

int main(int argc, char** argv) {
  const std::string page = dtensor::coverage::page(dtensor::coverage::table());
  if (argc == 1) {
    std::cout << page;
    return dtensor::finish_output(0);
  }
  std::ofstream out(argv[1]);
  out << page;
  out.flush();
  return out ? 0 : 1;
}
