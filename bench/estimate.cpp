// Estimated against measured step times: small decoders on 1 and 2 thread ranks, on the machine that this run
// calibrates. A second measurement of each configuration shows how far two runs of the same step differ. Then
// whether the mesh with the least estimated time is the fastest. Arguments: number of configurations (20), seed (1).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "plan/cost/stage_step.h"
#include "plan/decoder_cost.h"
#include "plan/measure/calibrate.h"
#include "timing.h"

namespace {

using namespace dtensor;

struct Configuration {
  plan::Workload work;
  ParallelLayout layout;
};

template <class T>
T one_of(std::mt19937& random, std::initializer_list<T> values) {
  return *(values.begin() + random() % values.size());
}

nn::DecoderConfig decoder(std::mt19937& random) {
  nn::DecoderConfig config;
  config.heads = one_of<std::int64_t>(random, {4, 8});
  config.kv_heads = one_of<std::int64_t>(random, {2, 4});
  config.hidden = config.heads * one_of<std::int64_t>(random, {16, 32, 64});
  config.ffn = config.hidden * one_of<std::int64_t>(random, {2, 4});
  config.layers = one_of<std::int64_t>(random, {1, 2, 4});
  config.vocabulary = one_of<std::int64_t>(random, {100, 1000, 5000});
  return config;
}

Configuration configuration(std::mt19937& random, int ranks) {
  Configuration c{.work = {decoder(random), 4, one_of<std::int64_t>(random, {32, 64, 128})}, .layout = {}};
  c.work.batch = one_of<std::int64_t>(random, {4, 8, 16});
  auto* axis = one_of(random, {&c.layout.replicate, &c.layout.shard, &c.layout.tp});
  *axis = ranks;
  c.layout.microbatches = one_of<std::int64_t>(random, {1, 1, 2});
  c.layout.recompute = one_of(random, {Recomputation::none, Recomputation::none, Recomputation::full});
  return c;
}

double measured(const Configuration& c) { return bench::median(plan::measure_steps(c.work, c.layout, 9)); }

double estimated(const Configuration& c, const HardwareModel& hardware) {
  return plan::planned_decoder(c.work, hardware, /*exact=*/true).cost(c.layout).seconds;
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

// How much slower the layout with the least estimated time is than the one with the least measured time.
void choose(int count, std::mt19937& random) {
  HardwareModel hardware;
  int good = 0;
  for (int i = 0; i < count; ++i) {
    if (i % 10 == 0) hardware = plan::calibrate(2);
    auto c = configuration(random, 1);
    std::vector<std::pair<double, double>> times;  // estimated, measured
    for (const auto& mesh : {ParallelLayout{.replicate = 2}, {.shard = 2}, {.tp = 2}}) {
      c.layout.replicate = mesh.replicate, c.layout.shard = mesh.shard, c.layout.tp = mesh.tp;
      times.emplace_back(estimated(c, hardware), measured(c));
    }
    const double chosen = std::min_element(times.begin(), times.end())->second;
    const auto faster = [](const auto& a, const auto& b) { return a.second < b.second; };
    const double slower = chosen / std::min_element(times.begin(), times.end(), faster)->second - 1;
    good += slower <= 0.1;
    std::printf("hidden %3ld layers %ld seq %3ld batch %2ld: the chosen layout is %.0f%% slower than the best\n",
                c.work.model.hidden, c.work.model.layers, c.work.sequence, c.work.batch, 100 * slower);
  }
  std::printf("%d of %d choices are within 10%% of the best\n", good, count);
}

void compare(int ranks, int count, std::mt19937& random) {
  HardwareModel hardware;
  std::vector<double> errors, noise;
  for (int i = 0; i < count; ++i) {
    if (i % 10 == 0) hardware = plan::calibrate(ranks);
    const auto c = configuration(random, ranks);
    const double first = measured(c), guess = estimated(c, hardware), second = measured(c);
    const double real = (first + second) / 2;
    errors.push_back(std::abs(guess / real - 1));
    noise.push_back(std::abs(second / first - 1));
    std::printf("%-44s hidden %3ld layers %ld seq %3ld batch %2ld: %8.2f ms, measured %8.2f and %8.2f: %+.0f%%\n",
                c.layout.str().c_str(), c.work.model.hidden, c.work.model.layers, c.work.sequence, c.work.batch,
                1e3 * guess, 1e3 * first, 1e3 * second, 100 * (guess / real - 1));
    std::fflush(stdout);
  }
  std::printf(
      "%d ranks, %d configurations: error median %.0f%%, 90th percentile %.0f%%; two runs differ by %.0f%%, %.0f%%\n",
      ranks, count, 100 * quantile(errors, 0.5), 100 * quantile(errors, 0.9), 100 * quantile(noise, 0.5),
      100 * quantile(noise, 0.9));
}

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 20;
  std::mt19937 random(argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1);
  for (const int ranks : {1, 2}) compare(ranks, count, random);
  choose(count, random);
}
