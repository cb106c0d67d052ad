// launch(): number of ranks, choice of backend, and errors for an invalid start.
#include "dtensor/launch.h"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>

#include "comm/fixture.h"
#include "comm/launch/launcher_environment.h"

namespace dtensor::test {
namespace {

// Sets environment variables for one test and hides the launcher that runs the tests.
class Environment {
 public:
  explicit Environment(std::vector<std::pair<const char*, const char*>> set) {
    for (const char* name : kNames) unsetenv(name);
    for (auto [name, value] : set) setenv(name, value, 1);
  }
  ~Environment() {
    for (const char* name : kNames) unsetenv(name);
  }

 private:
  static constexpr const char* kNames[] = {"DTENSOR_RANK",
                                           "DTENSOR_WORLD_SIZE",
                                           "MASTER_ADDR",
                                           "MASTER_PORT",
                                           "OMPI_COMM_WORLD_RANK",
                                           "OMPI_COMM_WORLD_SIZE",
                                           "PMI_RANK",
                                           "PMI_SIZE",
                                           "RANK",
                                           "WORLD_SIZE",
                                           "SLURM_PROCID",
                                           "SLURM_NTASKS",
                                           "SLURM_STEP_NUM_TASKS",
                                           "PMIX_RANK"};
};

struct Launched {
  int status = -1;
  int ranks = 0;
  std::string error;
};

Launched launched(
    std::vector<std::string> args, const std::function<void(Communicator)>& fn = [](Communicator) {}) {
  args.insert(args.begin(), "program");
  std::vector<char*> argv;
  for (auto& a : args) argv.push_back(a.data());
  Launched out;
  std::atomic<int> ranks{0};
  ::testing::internal::CaptureStderr();
  out.status = launch(static_cast<int>(argv.size()), argv.data(), [&](Communicator world) {
    ranks = world.size();
    fn(world);
  });
  out.error = ::testing::internal::GetCapturedStderr();
  out.ranks = ranks;
  return out;
}

std::ptrdiff_t lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

TEST(Launch, UnwritableOutputIsAFailure) {
  const Environment none({});
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";  // a fork would lack the pool's threads
  const auto print = [] {
    if (std::freopen("/dev/full", "w", stdout) == nullptr) std::_Exit(3);
    std::_Exit(launch(0, nullptr, [](Communicator) { std::printf("a result\n"); }));
  };
  EXPECT_EXIT(print(), ::testing::ExitedWithCode(1), "standard output could not be written");
}

std::size_t mapped_bytes() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// Limits the address space as `ulimit -v`, so that only some of the threads can be started.
TEST(Launch, FailureToStartThreadsIsAnError) {
  const Environment none({});
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";  // a fork would lack the pool's threads
  const auto start = [] {
    const rlim_t most = mapped_bytes() + (std::size_t{200} << 20);
    const rlimit limit{most, most};
    setrlimit(RLIMIT_AS, &limit);
    char program[] = "program", flag[] = "--ranks", ranks[] = "1000";
    char* argv[] = {program, flag, ranks};
    std::_Exit(launch(3, argv, [](Communicator world) { world.barrier(); }));
  };
  EXPECT_EXIT(start(), ::testing::ExitedWithCode(1), "cannot start thread [0-9]+ of the 1000 that thread ranks need");
}

TEST(Launch, BacktraceFollowsTheErrorLineOnRequest) {
  const Environment none({});
  const auto fails = [](Communicator world) { TORCH_CHECK(world.rank() != 1, "no such file"); };
  EXPECT_EQ(launched({"--ranks", "2"}, fails).error, "rank 1: no such file\n");
  setenv("TORCH_SHOW_CPP_STACKTRACES", "1", 1);
  const auto shown = launched({"--ranks", "2"}, fails).error;
  setenv("TORCH_SHOW_CPP_STACKTRACES", "0", 1);
  EXPECT_EQ(lines(launched({"--ranks", "2"}, fails).error), 1);
  unsetenv("TORCH_SHOW_CPP_STACKTRACES");
  EXPECT_EQ(shown.find("rank 1: no such file\nrank 1:   Exception raised from "), 0U) << shown;
  EXPECT_NE(shown.find("\nrank 1:   frame #1: "), std::string::npos) << shown;
}

TEST(Launch, ThreadsByFlags) {
  const Environment none({});
  EXPECT_EQ(launched({}).ranks, 1);
  EXPECT_EQ(launched({"--ranks", "3"}).ranks, 3);
  EXPECT_EQ(launched({"--ranks=2", "--lr", "7"}).ranks, 2);
  EXPECT_EQ(launched({"--mesh", "replicate=1,shard=2,tp=2"}).ranks, 4);
  EXPECT_EQ(launched({"--mesh=2,1,3"}).ranks, 6);
  EXPECT_EQ(launched({"--mesh", "tp=2", "--ranks", "3"}).ranks, 3);
  EXPECT_EQ(launched({"--ranks", "2", "--backend", "local"}).ranks, 2);
  EXPECT_EQ(launched({"--", "--ranks", "3"}).ranks, 1);
}

// MPI's libraries take long to load, so a program with thread ranks must not load them.
TEST(Launch, ThreadsLoadNoMpi) {
  const Environment none({});
  EXPECT_EQ(launched({"--ranks", "2"}).ranks, 2);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) EXPECT_EQ(line.find("mpi.so"), std::string::npos) << line;
}

TEST(Launch, InvalidFlagsAreOneLineAndStatusTwo) {
  const Environment none({});
  for (const auto& args : std::vector<std::vector<std::string>>{{"--ranks", "0"},
                                                                {"--ranks", "two"},
                                                                {"--ranks"},
                                                                {"--mesh", "tp="},
                                                                {"--mesh", "tp=2,"},
                                                                {"--mesh", "a=4096,b=4096"},
                                                                {"--mesh", "tp=4", "--ranks", "2"},
                                                                {"--backend", "nccl"}}) {
    const auto out = launched(args);
    EXPECT_EQ(out.status, 2) << args.back();
    EXPECT_EQ(out.ranks, 0);
    EXPECT_EQ(lines(out.error), 1) << out.error;
  }
}

// Otherwise each process would run alone, and all would save to one folder.
TEST(Launch, InconsistentVariablesAreOneLineAndStatusTwo) {
  using Set = std::vector<std::pair<const char*, const char*>>;
  for (const Set& set : {Set{{"RANK", "5"}, {"WORLD_SIZE", "2"}},
                         {{"RANK", "x"}, {"WORLD_SIZE", "2"}},
                         {{"RANK", "1"}},
                         {{"WORLD_SIZE", "2"}},
                         {{"RANK", "-1"}, {"WORLD_SIZE", "2"}},
                         {{"RANK", "0"}, {"WORLD_SIZE", "0"}},
                         {{"OMPI_COMM_WORLD_RANK", "0"}},
                         {{"PMI_RANK", "2"}, {"PMI_SIZE", "2"}},
                         {{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "2"}}}) {
    const Environment environment(set);
    const auto out = launched({});
    EXPECT_EQ(out.status, 2) << set[0].first << "=" << set[0].second;
    EXPECT_EQ(out.ranks, 0);
    EXPECT_EQ(lines(out.error), 1) << out.error;
    EXPECT_NE(out.error.find(std::string(set[0].first) + "=" + set[0].second), std::string::npos) << out.error;
  }
}

// The environment of an allocation without a job step.
TEST(Launch, SlurmAllocationWithoutStepStartsOneProcess) {
  const Environment environment(std::vector<std::pair<const char*, const char*>>{{"SLURM_NTASKS", "4"}});
  EXPECT_EQ(launched({}).ranks, 1);
}

// A program may have flags with the same names as launch(): unknown values belong to the program.
TEST(Launch, IgnoresUnknownValuesOfItsFlags) {
  const Environment none({});
  for (const auto& args : std::vector<std::vector<std::string>>{{"--backend", "gloo"},
                                                                {"--backend=gloo"},
                                                                {"--backend"},
                                                                {"--mesh", "bunny.obj"},
                                                                {"--mesh=scans/bunny.obj,scans/dragon.obj"},
                                                                {"--mesh", "quality=high"},
                                                                {"--mesh"},
                                                                {"--mesh", "--verbose"}}) {
    const auto out = launched(args);
    EXPECT_EQ(out.status, 0) << args.back() << ": " << out.error;
    EXPECT_EQ(out.ranks, 1) << args.back();
  }
  EXPECT_EQ(launched({"--backend", "gloo", "--mesh", "bunny.obj", "--ranks", "2"}).ranks, 2);
  EXPECT_EQ(launched({"--backend", "--ranks", "2"}).ranks, 2);
}

TEST(Launch, FailingRankIsOneLineAndStatusOne) {
  const Environment none({});
  const auto out = launched({"--ranks", "3"}, [](Communicator world) {
    TORCH_CHECK(world.rank() != 2, "no such\nfile");
    world.barrier();
  });
  EXPECT_EQ(out.status, 1);
  EXPECT_EQ(out.error, "rank 2: no such file\n");
}

TEST(Launch, LauncherWithoutBackendIsRefused) {
  for (const auto& variables : std::vector<std::vector<std::pair<const char*, const char*>>>{
           {{"RANK", "0"}, {"WORLD_SIZE", "4"}},
           {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}},
           {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}}}) {
    const Environment launcher(variables);
    const auto out = launched({});
    EXPECT_EQ(out.status, 2);
    EXPECT_EQ(out.ranks, 0);
    EXPECT_EQ(lines(out.error), 1) << out.error;
  }
}

TEST(Launch, OnlyTheFirstProcessPrintsTheError) {
  const Environment launcher({{"RANK", "3"}, {"WORLD_SIZE", "4"}});
  const auto out = launched({});
  EXPECT_EQ(out.status, 2);
  EXPECT_EQ(out.error, "");
}

TEST(Launch, ThreadRanksUnderAProcessLauncherAreRefused) {
  const Environment launcher({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  EXPECT_EQ(launched({"--backend", "local"}).status, 2);
}

TEST(Launch, LauncherOfOneProcessIsIgnored) {
  const Environment launcher({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}});
  EXPECT_EQ(launched({"--ranks", "2"}).ranks, 2);
}

// The socket backend runs one process without a launcher.
TEST(Launch, SocketBackendOfOneProcess) {
  const Environment none({});
  std::string backend;
  const auto out = launched({"--backend", "socket"}, [&](Communicator world) { backend = backend_of(world)->name(); });
  EXPECT_EQ(out.status, 0) << out.error;
  EXPECT_EQ(backend, "socket");
}

TEST(Launch, DtensorVariablesTakePrecedence) {
  const Environment launcher({{"DTENSOR_RANK", "1"},
                              {"DTENSOR_WORLD_SIZE", "3"},
                              {"OMPI_COMM_WORLD_RANK", "0"},
                              {"OMPI_COMM_WORLD_SIZE", "2"}});
  const auto e = launcher_environment();
  EXPECT_EQ(e.rank, 1);
  EXPECT_EQ(e.size, 3);
  EXPECT_FALSE(e.mpi);
}

TEST(Launch, DetectsTheLauncher) {
  {
    const Environment launcher(
        {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}});
    const auto e = launcher_environment();
    EXPECT_EQ(e.launcher, "mpirun");
    EXPECT_EQ(e.rank, 1);
    EXPECT_EQ(e.size, 2);
    EXPECT_TRUE(e.mpi);
  }
  const Environment launcher({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_STEP_NUM_TASKS", "1"}});
  EXPECT_EQ(launcher_environment().size, 1);  // the process of the batch script
}

}  // namespace
}  // namespace dtensor::test
