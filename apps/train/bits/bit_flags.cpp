// Flags of --bit-identical.
#include "train/bits/bit_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "train/bits/hashes.h"

namespace train {

void add_bit_flags(CLI::App& app, Options& o) {
  app.add_flag("--bit-identical", o.bit_identical, "the same bits on every mesh; --compare then expects equal losses");
  app.add_option("--hashes", o.hashes,
                 "write a JSON line per step to this file: SHA-256 of each gradient, and of each parameter with its "
                 "optimizer states after the step");
  app.add_flag("--operator-hashes", o.operator_hashes, "add the results of each operator to --hashes");
  app.add_option("--replay", o.replay,
                 "repeat the run on this mesh up to step N, from the checkpoint before it in --load (or from the "
                 "start), and compare with --hashes")
      ->check(CLI::Range(1, 100'000'000));
  app.add_option("--check-ranks", o.check_ranks,
                 "every N steps other ranks compute the gradients again; a rank that computed wrong ones is named")
      ->check(CLI::Range(1, 100'000'000));
  app.add_option_function<std::string>(
         "--wrong-rank", [&o](const std::string& text) { o.stop_on_wrong_rank = text == "stop"; },
         "if --check-ranks finds a wrong rank: stop before the optimizer step, or report it and go on")
      ->check(CLI::IsMember({"stop", "report"}));
}

void check_bit_flags(const CLI::App& app, Options& o) {
  const bool stages = o.mesh && o.mesh->pp > 1;
  for (const char* flag : {"--hashes", "--check-ranks"}) {
    if (!o.bit_identical && app.count(flag) > 0) throw UsageError(fmt::format("{} needs --bit-identical", flag));
  }
  for (const char* flag : {"--operator-hashes", "--replay"}) {
    if (o.hashes.empty() && app.count(flag) > 0) throw UsageError(fmt::format("{} needs --hashes", flag));
  }
  if (o.operator_hashes && stages) throw UsageError("--operator-hashes needs a --mesh without pp");
  if (app.count("--wrong-rank") > 0 && o.check_ranks == 0) throw UsageError("--wrong-rank needs --check-ranks");
  if (o.check_ranks > 0 && stages) throw UsageError("--check-ranks needs a --mesh without pp");
  if (o.check_ranks > 0 && o.experts) throw UsageError("--check-ranks needs a model without experts");
  if (o.replay == 0) return;
  for (const char* flag : {"--save", "--resume", "--operator-hashes", "--compare"}) {
    if (app.count(flag) > 0) throw UsageError(fmt::format("expected --replay or {}, got both", flag));
  }
  o.steps = o.replay;
  o.load = checkpoint_before(o.load, o.replay);
}

}  // namespace train
