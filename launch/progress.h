// Progress of long steps on standard error: one line that is rewritten on a terminal, a plain line
// now and then elsewhere if wanted, nothing otherwise. One thread.
#pragma once

#include <cstdint>
#include <string>

namespace expertflow {

class ProgressLine {
 public:
  // `plain`: also where standard error is no terminal.
  explicit ProgressLine(bool plain);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void Show(const std::string& text);
  // "<what> 45 % of 27.4 MB"
  void ShowBytes(const std::string& what, uint64_t done, uint64_t total);
  // Makes room for other output.
  void Clear();

 private:
  bool terminal_;
  bool plain_;
  bool shown_ = false;
  int64_t next_plain_ns_ = 0;
  std::string last_;
};

}  // namespace expertflow
