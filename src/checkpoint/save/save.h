// A save in three steps: what is to be written where (collective), this rank's writing, and the name (collective).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/format/checksum.h"
#include "checkpoint/format/files/folder_lock.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/local_part.h"
#include "checkpoint/save/manifest.h"
#include "dtensor/checkpoint.h"

namespace dtensor::files {

class Saver {
 public:
  // Collective: agrees, lays out, takes the folder's lock, makes the temporary folder.
  Saver(std::string directory, const Communicator& ranks, const StateTensors& tensors, const CheckpointValues& values,
        const SaveOptions& options);

  // Replaces the tensors by copies of what this rank will write. Collective where prepare_for_write is. What fails is
  // told by finish().
  void copy_parts();
  // Writes this rank's part. Collective where prepare_for_write is, unless parts were copied. Does not throw: what
  // fails is told by finish().
  void write() noexcept;
  // Collective: all have written, or an error on all and the temporary folder is gone. `before_waiting` runs when all
  // are known to be here; from then on a rank whose disk is slow is waited for, however long it takes.
  void finish(const std::function<void()>& before_waiting = {});
  void drop() noexcept;  // removes the temporary folder, on the rank that made it

 private:
  Part part(std::size_t index) const;
  void write_part(const Part& part, std::size_t index);
  void keep_error(const std::function<void()>& fn);
  void check_sums();

  std::string begin(const std::string& directory);

  std::string directory_, temporary_, what_;
  std::unique_ptr<FolderLock> lock_;  // on the rank that makes the folder
  Communicator ranks_;
  SaveOptions options_;
  Manifest manifest_;
  FileLayout file_layout_;
  std::vector<at::Tensor> tensors_;  // by manifest; undefined where this rank does not list it
  std::vector<Part> parts_;          // once copied
  std::vector<Checksum> own_;        // of this rank's share, by manifest
  std::string error_;
};

}  // namespace dtensor::files
