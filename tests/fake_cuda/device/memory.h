// Device memory, and the check that conflicting accesses to it are ordered. Functions require the simulator's lock
// unless stated otherwise.
#pragma once

#include <c10/core/Allocator.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fake_cuda/device/simulator.h"

namespace dtensor::test::fake_cuda {

struct Access {
  std::uintptr_t begin, end;
  int stream;
  std::uint64_t number;  // of the operation on its stream
  bool write;
  std::string name;
};

// Memory of one allocation, freed with its last owner.
struct Block {
  Block(std::size_t bytes, const CUstream_st& stream);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  std::uintptr_t begin, end;
  int device, stream;
  std::set<int> recorded;  // streams of recordStream
  std::vector<Access> accesses;
};

class Memory final : public c10::Allocator {
 public:
  static Memory& instance();

  // These take the lock.
  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override;
  void record_stream(const void* data, int stream);

  // The block that holds [data, data + bytes) on this device; null if there is none.
  std::shared_ptr<Block> find(const void* data, std::size_t bytes, int device) const;
  // Checks an access by the last operation of `stream`, and remembers it.
  void access(Block& block, const CUstream_st& stream, const void* data, std::size_t bytes, bool write,
              const std::string& name);

 private:
  void release(void* data);

  std::map<std::uintptr_t, std::shared_ptr<Block>> blocks_;  // by begin
};

}  // namespace dtensor::test::fake_cuda
