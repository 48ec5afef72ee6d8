#!/usr/bin/env bash
# lab.sh {start|stop|kill NODE|revive NODE}: a real Slurm of several nodes on this machine, for tests.
#
# As root; without systemd, cgroups or network, as in a container of CI. Settings, by environment, for `start`:
#   NODES=3 CPUS=2 MEM=4000   virtual nodes n1..n3, and what each one claims to have (it may be more than the machine has)
#   ACCT=0                    1: slurmdbd and a MariaDB of its own too, so that `sacct` answers
#   GPUS=0                    GPUs per node: no hardware, but CUDA_VISIBLE_DEVICES is set
#   MAX_ARRAY=1001            MaxArraySize: the highest index of an array is one less
#   MIN_JOB_AGE=300           seconds that `squeue -t all` remembers a finished job, at least
set -euo pipefail

NODES=${NODES:-3} CPUS=${CPUS:-2} MEM=${MEM:-4000}
ACCT=${ACCT:-0} GPUS=${GPUS:-0} MAX_ARRAY=${MAX_ARRAY:-1001} MIN_JOB_AGE=${MIN_JOB_AGE:-300}
LAB=/var/spool/sweeprof-lab
CONF=/etc/slurm/slurm.conf # where every client looks for it, also one whose environment was cleared
MARK="# Written by sweeprof's tests/cluster/lab.sh"
DATABASE_PORT=16819
HOST=$(hostname -s)

fail() {
  echo "lab.sh: $*" >&2
  exit 1
}

# Asks every 0.1 s, for 30 s: `until_ok WHAT COMMAND...`
until_ok() {
  local what=$1
  shift
  for _ in $(seq 300); do
    if "$@" >/dev/null 2>&1; then return; fi
    sleep 0.1
  done
  tail -n 20 "$LAB"/log/*.log >&2 || true
  fail "$what: not in 30 s"
}

# --- processes -----------------------------------------------------------------------------------------------------

# The process of a pid file, if it is still the program that wrote it.
pid_of() {
  local pid
  pid=$(cat "$LAB/run/$2.pid" 2>/dev/null) || return 1
  [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$1" ] && echo "$pid"
}

end() {
  local pid
  pid=$(pid_of "$@") || return 0
  kill "-${3:-KILL}" "$pid" 2>/dev/null || return 0
  until_ok "the end of $1" not_alive "$pid"
}

# In a container nobody may reap what has ended.
not_alive() {
  [ ! -e "/proc/$1" ] || grep -q '^State:.[ZX]' "/proc/$1/status"
}

# Every process of a node: its daemons and its jobs share a UTS namespace with nobody else.
processes() {
  local namespace
  namespace=$(cat "$LAB/run/$1.namespace" 2>/dev/null) || return 0
  find /proc -maxdepth 3 -path '/proc/[0-9]*/ns/uts' -lname "${namespace//[][]/?}" 2>/dev/null | cut -d/ -f3 || true
}

# Those of some processes that have one of these names: `named 'slurmd|slurmstepd' PID...`
named() {
  local name=$1
  shift
  grep -lxE "$name" "${@/%//comm}" 2>/dev/null | cut -d/ -f1 || true
}

# Like a power cut: nothing on the node says goodbye.
do_kill() {
  local pids
  while pids=$(processes "$1") && [ -n "$pids" ]; do
    kill -KILL $(cd /proc && named 'slurmd|slurmstepd' $pids) 2>/dev/null || true # a stepd that outlives its job tells how it ended
    kill -KILL $pids 2>/dev/null || true
  done
  rm -f "$LAB/run/$1.namespace"
}

do_revive() {
  do_kill "$1"
  unshare --uts sh -c "hostname $1; readlink /proc/self/ns/uts >$LAB/run/$1.namespace; exec slurmd -N $1" \
    >>"$LAB/log/$1.out" 2>&1
}

# --- what runs -----------------------------------------------------------------------------------------------------

fake_gpus() {
  [ "$GPUS" != 0 ] || return 0
  for gpu in $(seq 0 $((GPUS - 1))); do
    [ -e "/dev/fakegpu$gpu" ] || mknod "/dev/fakegpu$gpu" c 1 3
  done
  printf '%s\n' "$MARK" "Name=gpu File=/dev/fakegpu[0-$((GPUS - 1))]" >/etc/slurm/gres.conf
}

configure() {
  local storage=none gpus=""
  [ "$ACCT" = 0 ] || storage=$'slurmdbd\nAccountingStorageHost=127.0.0.1'
  [ "$GPUS" = 0 ] || gpus="Gres=gpu:$GPUS"
  cat >$CONF <<EOT
$MARK
ClusterName=lab
SlurmctldHost=$HOST(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# A requeued or preempted job is held until its credential has expired: 2 minutes, unless told. Slurm takes 5 s and more.
AuthInfo=cred_expire=5
StateSaveLocation=$LAB/state
SlurmdSpoolDir=$LAB/spool/%n
SlurmctldPidFile=$LAB/run/slurmctld.pid
SlurmdPidFile=$LAB/run/%n.pid
SlurmctldLogFile=$LAB/log/slurmctld.log
SlurmdLogFile=$LAB/log/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
# Without cgroups a limit of memory holds only because somebody looks every second.
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/$storage
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
# A dead node is noticed after two pings, each of which tries for as long as a message may take: some 15 s in all.
SlurmdTimeout=10
MessageTimeout=5
KillWait=2
InactiveLimit=0
MinJobAge=$MIN_JOB_AGE
MaxArraySize=$MAX_ARRAY
DefMemPerCPU=256
${gpus:+GresTypes=gpu}
NodeName=n[1-$NODES] NodeHostname=$HOST NodeAddr=127.0.0.1 Port=17001-$((17000 + NODES)) CPUs=$CPUS RealMemory=$MEM $gpus
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE
PartitionName=high Nodes=ALL MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF
EOT
}

start_munge() {
  install -d -o munge -g munge -m 755 /run/munge
  if munge -n >/dev/null 2>&1; then return; fi # one that is not ours, and may stay
  if [ ! -s /etc/munge/munge.key ]; then
    head -c 128 /dev/urandom >/etc/munge/munge.key
    chown munge:munge /etc/munge/munge.key
    chmod 400 /etc/munge/munge.key
  fi
  rm -f /run/munge/munge.socket.2*
  su -s /bin/sh munge -c /usr/sbin/munged
  cp /run/munge/munged.pid "$LAB/run/munged.pid"
  until_ok "munge" munge -n
}

# A database of the lab's own, empty at every start: numbers of jobs begin at 1 again, too.
start_accounting() {
  local data=$LAB/database
  install -d -o mysql -g mysql "$data"
  mariadb-install-db --no-defaults --user=mysql --datadir="$data" --auth-root-authentication-method=normal \
    --skip-test-db >"$LAB/log/mariadb.log" 2>&1
  cat >"$LAB/users.sql" <<EOT
create database slurm_acct_db;
create user 'slurm'@'127.0.0.1' identified by 'slurm';
grant all on slurm_acct_db.* to 'slurm'@'127.0.0.1';
EOT
  setsid mariadbd --no-defaults --user=mysql --datadir="$data" --socket="$data/socket" --pid-file="$data/pid" \
    --bind-address=127.0.0.1 --port=$DATABASE_PORT --skip-name-resolve --init-file="$LAB/users.sql" \
    --innodb-lock-wait-timeout=900 --innodb-flush-log-at-trx-commit=0 >>"$LAB/log/mariadb.log" 2>&1 </dev/null &
  echo $! >"$LAB/run/mariadbd.pid"
  until_ok "MariaDB" mariadb --no-defaults -h127.0.0.1 -P$DATABASE_PORT -uslurm -pslurm -e 'use slurm_acct_db'
  cat >/etc/slurm/slurmdbd.conf <<EOT
$MARK
AuthType=auth/munge
DbdHost=$HOST
DbdAddr=127.0.0.1
SlurmUser=root
LogFile=$LAB/log/slurmdbd.log
PidFile=$LAB/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$DATABASE_PORT
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
EOT
  chmod 600 /etc/slurm/slurmdbd.conf
  slurmdbd >>"$LAB/log/slurmdbd.out" 2>&1
  until_ok "slurmdbd" sacctmgr -n list cluster
  sacctmgr -i add cluster lab >/dev/null
}

all_idle() {
  [ "$(sinfo -h -t idle -o %D -p debug)" = "$NODES" ]
}

taken() {
  (: <"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

do_start() {
  [ "$(id -u)" = 0 ] || fail "a Slurm of several nodes needs root"
  [ -n "$(command -v slurmctld)" ] && [ -n "$(command -v slurmd)" ] && [ -n "$(command -v munged)" ] || fail "no Slurm here: make slurm"
  [ ! -s $CONF ] || head -n 1 $CONF | grep -qxF "$MARK" || fail "$CONF is not the lab's: this machine has a Slurm of its own"
  do_stop
  for port in 6817 $(seq 17001 $((17000 + NODES))); do
    if taken "$port"; then fail "a Slurm that is not the lab's listens on port $port"; fi
  done
  rm -rf "$LAB" # else the jobs of last time come back
  mkdir -p /etc/slurm "$LAB"/{state,spool,run,log}
  fake_gpus
  configure
  start_munge
  [ "$ACCT" = 0 ] || start_accounting
  slurmctld >>"$LAB/log/slurmctld.out" 2>&1
  for node in $(seq "$NODES"); do do_revive "n$node"; done
  until_ok "$NODES idle nodes" all_idle
}

do_stop() {
  for namespace in "$LAB"/run/*.namespace; do
    if [ -e "$namespace" ]; then do_kill "$(basename "$namespace" .namespace)"; fi
  done
  end slurmctld slurmctld
  end slurmdbd slurmdbd
  end mariadbd mariadbd
  end munged munged TERM
  for file in $CONF /etc/slurm/slurmdbd.conf /etc/slurm/gres.conf; do
    if head -n 1 "$file" 2>/dev/null | grep -qxF "$MARK"; then rm "$file"; fi
  done
}

case ${1:-} in
  start | stop) "do_$1" ;;
  kill | revive) "do_$1" "${2:?the name of a node}" ;;
  *) fail "start, stop, kill NODE or revive NODE" ;;
esac
