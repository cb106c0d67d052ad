// Errors that each thread rank gets for a mistake.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "dtensor/dtensor.h"
#include "support/data.h"
#include "support/errors.h"

namespace dtensor::test {

// Returns the error of each rank, or "no error". A rank that waits for a rank that returned gets an error; all other
// waits end after a minute.
inline std::vector<std::string> texts_of(int ranks, const std::function<void(const Communicator&)>& mistake) {
  std::vector<std::string> texts(static_cast<std::size_t>(ranks), "no error");
  RunOptions options;
  options.timeout = std::chrono::seconds(60);
  run_local(
      ranks,
      [&](const Communicator& world) {
        auto& text = texts[static_cast<std::size_t>(world.rank())];
        try {
          mistake(world);
        } catch (const c10::Error& error) {
          text = error.what_without_backtrace();
        } catch (const std::exception& error) {
          text = error.what();
        }
      },
      options);
  return texts;
}

// What part of an error is compared across ranks.
enum class Alike {
  entire_text,
  message,  // without the parentheses at the end, which name this rank's operator and operands
};

inline std::string compared(const std::string& text, Alike alike) {
  if (alike == Alike::entire_text) return text;
  return text.substr(0, std::min(text.find(" [rank "), text.find(" (in ")));
}

inline std::string page_of_errors() {
  std::ifstream in(source_path("docs/errors.md"));
  return {std::istreambuf_iterator<char>(in), {}};
}

// Expects one text on every rank that contains all of `parts`. docs/errors.md quotes the first part.
inline void expect_reported(const std::vector<std::string>& texts, const std::vector<std::string>& parts,
                            Alike alike = Alike::entire_text) {
  static const std::string page = page_of_errors();
  EXPECT_NE(page.find(parts[0]), std::string::npos) << "docs/errors.md does not have '" << parts[0] << "'";
  for (const auto& text : texts) {
    EXPECT_EQ(compared(text, alike), compared(texts[0], alike));
    for (const auto& part : parts) EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' in: " << text;
  }
}

// Runs `mistake` on a mesh of 2 x 2 thread ranks, inside the modules h.0 and mlp.
inline void expect_error(const std::vector<std::string>& parts, const std::function<void(const DeviceMesh&)>& mistake,
                         Alike alike = Alike::entire_text) {
  static const std::string outer = "h.0", inner = "mlp";
  const auto in_modules = [&](const Communicator& world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"dp", "tp"});
    const ModuleScope block(outer), mlp(inner);
    mistake(mesh);
  };
  expect_reported(texts_of(4, in_modules), parts, alike);
}

}  // namespace dtensor::test
