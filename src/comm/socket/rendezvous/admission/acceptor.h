// Accepts connections and reads their messages in one poll loop. Connections are bounded in number, in the size of what
// they send, and in time, so that strangers cannot exhaust this process.
#pragma once

#include <chrono>
#include <list>
#include <string>
#include <vector>

#include "comm/socket/rendezvous/admission/job_table.h"
#include "comm/socket/stream.h"

namespace dtensor::sockets {

// Prints "rank r: text" on stderr.
void print_notice(int rank, const std::string& text);

class Acceptor {
 public:
  explicit Acceptor(int rank) : rank_(rank) {}
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;
  virtual ~Acceptor() = default;

  void listen(std::vector<Stream> listeners, bool same_host);
  void add(Stream accepted, bool same_host);
  // Waits at most `time` until there is something to do, and does all that can be done without waiting.
  void poll(std::chrono::milliseconds time);

 protected:
  struct Pending {
    Stream stream;
    bool same_host = false;
    std::string address;
    std::chrono::steady_clock::time_point since;
    std::size_t wanted = sizeof(Join);  // bytes of its next message; 0: it must send nothing
    std::string in, out;
    bool last_reply = false;  // it is closed when `out` is written
    JobTable::Entry entry;
  };

  // Whether these bytes, which may be incomplete, begin the next message.
  virtual bool may_begin(const Pending& pending) const = 0;
  // `pending.in` is a complete message. Takes the stream, replies, or calls refuse().
  virtual void receive(Pending& pending) = 0;
  virtual void closed(const Pending&) {}
  void refuse(Pending& pending, const std::string& why);  // closes it after what is in `out`, and logs the reason
  std::list<Pending>& pending() { return pending_; }
  const std::list<Pending>& pending() const { return pending_; }

 private:
  struct Listener {
    Stream stream;
    bool same_host;
  };
  void accept_from(const Listener& listener);
  bool close_oldest(const std::string& why);
  void read(Pending& pending);
  void write(Pending& pending);
  void close(Pending& pending, const std::string& why);
  void drop_late_and_finished();

  const int rank_;
  int logged_ = 0;
  std::vector<Listener> listeners_;
  std::list<Pending> pending_;  // the oldest first
};

}  // namespace dtensor::sockets
